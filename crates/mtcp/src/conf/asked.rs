//! What a program has set. Programs read all the numbers, change some, and give back all of them, more than once and from
//! more than one copy: only what they changed is meant. Others may follow from it, the number of buffers from their size: what was
//! told before, and is given back, would be another thing now.

use super::{File, Sizes};

/// The numbers that a program has set, and those that it has from us or we from it.
pub struct Asked {
    set: Sizes,
    /// What passed between us last, either way.
    last: Sizes,
    /// What the program has given last, whether it was meant or not.
    given: Sizes,
}

impl Asked {
    /// Nothing was set or told yet.
    pub const NOTHING: Asked = Asked { set: Sizes::NOTHING, last: Sizes::NOTHING, given: Sizes::NOTHING };

    /// What was set since a file named it; zero otherwise.
    pub fn set(&self) -> Sizes {
        self.set
    }

    /// The program is told these.
    pub fn tell(&mut self, sizes: Sizes) {
        self.last = sizes;
    }

    /// The program gives these; zero and below say nothing.
    pub fn give(&mut self, new: Sizes) {
        let others =
            new.with(self.last, self.given, |new, last, given| if new == last || new == given { 0 } else { new });
        self.set = self.set.updated(others);
        self.last = self.last.updated(new);
        self.given = self.given.updated(new);
    }

    /// A file goes before what was set earlier, where it names it; the program may set the same again.
    pub fn read(&mut self, file: &File) {
        self.last =
            self.last.with(self.set, file.named, |last, set, named| if set != 0 && named != 0 { 0 } else { last });
        self.set = self.set.but_for(file);
        self.given = self.given.but_for(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: Sizes = Sizes { max_num_buffers: 32_768, rcvbuf_size: 65_536, sndbuf_size: 262_144, ..Sizes::NOTHING };

    fn told() -> Asked {
        let mut asked = Asked::NOTHING;
        asked.tell(TOLD);
        asked
    }

    #[test]
    fn what_was_told_is_not_meant_however_often_it_is_given_back() {
        let mut asked = told();
        let new = Sizes { rcvbuf_size: 1 << 20, ..TOLD };
        let meant = Sizes { rcvbuf_size: 1 << 20, ..Sizes::NOTHING };
        asked.give(new);
        assert_eq!(asked.set(), meant);
        asked.give(new);
        assert_eq!(asked.set(), meant);
        // Into another copy.
        asked.tell(Sizes { max_num_buffers: 508, ..new });
        asked.give(new);
        assert_eq!(asked.set(), meant);
        // Nor where there was one already.
        asked.give(Sizes { max_num_buffers: 2000, ..Sizes::NOTHING });
        asked.tell(TOLD);
        asked.give(Sizes { sndbuf_size: 1 << 20, ..TOLD });
        assert_eq!(asked.set(), Sizes { max_num_buffers: 2000, sndbuf_size: 1 << 20, ..meant });
    }

    #[test]
    fn what_was_set_is_taken_back() {
        // The engine that runs has it from before.
        let mut asked = told();
        asked.give(Sizes { sndbuf_size: 345_678, ..TOLD });
        asked.give(TOLD);
        assert_eq!(asked.set(), Sizes { sndbuf_size: TOLD.sndbuf_size, ..Sizes::NOTHING });
        asked.give(Sizes { sndbuf_size: 345_678, ..TOLD });
        assert_eq!(asked.set().sndbuf_size, 345_678);
    }

    #[test]
    fn the_same_is_set_again_after_a_file() {
        let mut asked = told();
        let new = Sizes { rcvbuf_size: 300_000, ..TOLD };
        asked.give(new);
        let named = Sizes { rcvbuf_size: 100_000, max_num_buffers: 1000, ..Sizes::NOTHING };
        asked.read(&File { named, ..File::none() });
        assert_eq!(asked.set(), Sizes::NOTHING);
        asked.give(new);
        assert_eq!(asked.set(), Sizes { rcvbuf_size: 300_000, ..Sizes::NOTHING });
        asked.read(&File { named, ..File::none() });
        asked.tell(Sizes { rcvbuf_size: 100_000, max_num_buffers: 1000, ..TOLD });
        asked.give(new);
        assert_eq!(asked.set(), Sizes { rcvbuf_size: 300_000, max_num_buffers: 32_768, ..Sizes::NOTHING });
    }
}
