//! Cores of a group's listeners: whose connections each is to have.

use super::scan::{Group, Listener, Worker};
use crate::processes::Thread;
use ::io::bpf::ListenGroup;
use std::collections::{BTreeMap, BTreeSet};

/// A listener's core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The listener (SO_COOKIE).
    pub cookie: u64,
    /// A thread that accepts from it.
    pub thread: Thread,
    /// The core; none where its thread is not pinned, and is not to be.
    pub core: Option<u32>,
    /// Cores that the thread may use so far, where it is to be pinned.
    pub pin: Option<Vec<u32>>,
}

/// Cores that were given to threads.
#[derive(Debug)]
pub struct Cores<'a> {
    /// Those that may be given; none for all that a thread may use.
    pub only: Option<&'a [u32]>,
    /// True where threads are to be pinned.
    pub pin: bool,
    /// By thread.
    given: BTreeMap<u32, u32>,
}

impl Cores<'_> {
    /// None was given yet.
    pub fn new(only: Option<&[u32]>, pin: bool) -> Cores<'_> {
        Cores { only, pin, given: BTreeMap::new() }
    }

    /// Cores of a group's listeners, or the reason why the group is to stay as it is.
    pub fn choose(&mut self, group: &Group) -> Result<Vec<Choice>, String> {
        if let Some(pid) = group.listeners.iter().find_map(|listener| listener.preloaded) {
            return Err(format!("pid {pid} is under corelane run, which selects its listeners"));
        }
        let [_, _, ..] = &group.listeners[..] else {
            return Err("one listener, and so nothing to select: corelane run partitions it".into());
        };
        if group.listeners.len() > ListenGroup::SLOTS as usize {
            return Err(format!("more than {} listeners", ListenGroup::SLOTS));
        }
        let workers: BTreeSet<_> = group.listeners.iter().flat_map(|listener| &listener.threads).collect();
        let pinned = workers.iter().filter_map(|worker| worker.only_core().map(|core| (worker.thread.tid, core)));
        self.given.extend(pinned);
        let choices = group.listeners.iter().map(|listener| self.choice(listener)).collect::<Result<Vec<_>, _>>()?;
        if workers.len() == 1 {
            let all = workers.iter().map(|worker| worker.thread.to_string()).collect::<String>();
            return Err(format!("{all} accepts from all of its listeners"));
        }
        match choices.iter().any(|choice| choice.core.is_some()) {
            true => Ok(choices),
            false => Err("none of its workers is pinned to a core, and --no-pin leaves them so".into()),
        }
    }

    fn choice(&mut self, listener: &Listener) -> Result<Choice, String> {
        let [first, others @ ..] = &listener.threads[..] else {
            return Err("nobody was found who accepts from one of its listeners".into());
        };
        let Worker { thread, cores } = first;
        let chosen = |core, pin| Ok(Choice { cookie: listener.cookie, thread: thread.clone(), core, pin });
        if let Some(core) = first.only_core()
            && others.iter().all(|other| other.cores == first.cores)
        {
            return chosen(Some(core), None);
        }
        if !others.is_empty() {
            return Err(format!(
                "{} threads accept from one of its listeners, {thread} among them",
                listener.threads.len()
            ));
        }
        if !self.pin {
            return chosen(None, None);
        }
        let core = self.given.get(&thread.tid).copied().or_else(|| self.fewest(cores));
        let Some(core) = core else {
            return Err(format!("--cores has none that {thread} may use"));
        };
        self.given.insert(thread.tid, core);
        chosen(Some(core), Some(cores.clone()))
    }

    /// Core with the fewest threads.
    fn fewest(&self, cores: &[u32]) -> Option<u32> {
        let threads = |core: u32| self.given.values().filter(|given| **given == core).count();
        let may = cores.iter().copied().filter(|core| self.only.is_none_or(|only| only.contains(core)));
        may.min_by_key(|core| threads(*core))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use channel::Place;
    use rustix::fd::AsFd;

    fn worker(tid: u32, cores: &[u32]) -> Worker {
        Worker { thread: Thread { pid: 7, tid, started: 1, name: "w".into() }, cores: cores.into() }
    }

    /// A group whose listeners have these workers.
    fn group(workers: &[&[Worker]]) -> Group {
        let socket = || {
            use rustix::net::{AddressFamily, SocketType, socket};
            socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
        };
        let listener = |(cookie, threads): (usize, &&[Worker])| Listener {
            cookie: cookie as u64,
            socket: socket(),
            threads: threads.to_vec(),
            preloaded: None,
        };
        let place = Place::of(socket().as_fd()).unwrap();
        Group { place, listeners: workers.iter().enumerate().map(listener).collect() }
    }

    /// Cores, and `p` where the thread is to be pinned to it; or the reason against it.
    fn chosen(cores: &mut Cores<'_>, workers: &[&[Worker]]) -> String {
        let text = |choice: &Choice| {
            let core = choice.core.map_or("-".into(), |core| core.to_string());
            core + if choice.pin.is_some() { "p" } else { "" }
        };
        match cores.choose(&group(workers)) {
            Ok(choices) => choices.iter().map(text).collect::<Vec<_>>().join(" "),
            Err(why) => why,
        }
    }

    #[test]
    fn workers_that_are_pinned_keep_their_cores_and_others_get_the_emptiest() {
        let all = [0, 1, 2, 3];
        let pinned = [worker(10, &[2]), worker(11, &[0]), worker(12, &all), worker(13, &all)];
        let each: Vec<_> = pinned.iter().map(std::slice::from_ref).collect();
        assert_eq!(chosen(&mut Cores::new(None, true), &each), "2 0 1p 3p");
        assert_eq!(chosen(&mut Cores::new(None, true), &[each[2], each[3], each[1], each[0]]), "1p 3p 0 2");
        assert_eq!(chosen(&mut Cores::new(Some(&[3]), true), &each), "2 0 3p 3p");
        assert_eq!(chosen(&mut Cores::new(None, false), &each), "2 0 - -");
        // A thread that accepts on another port, too, has one core.
        let mut cores = Cores::new(None, true);
        assert_eq!(chosen(&mut cores, &each[2..]), "0p 1p");
        assert_eq!(chosen(&mut cores, &[each[3], each[2]]), "1p 0p");
    }

    #[test]
    fn threads_of_one_core_may_share_a_listener() {
        let (one, two) = ([worker(10, &[1]), worker(11, &[1])], [worker(12, &[0])]);
        assert_eq!(chosen(&mut Cores::new(None, true), &[&one, &two]), "1 0");
    }

    #[test]
    fn groups_that_cannot_be_selected_by_core_say_why() {
        let (a, b) = ([worker(10, &[0, 1])], [worker(11, &[0, 1])]);
        let both = [a[0].clone(), b[0].clone()];
        let many = vec![&a[..]; 257];
        let why = |workers: &[&[Worker]]| chosen(&mut Cores::new(None, true), workers);
        assert_eq!(why(&[&a]), "one listener, and so nothing to select: corelane run partitions it");
        assert_eq!(why(&many), "more than 256 listeners");
        assert_eq!(why(&[&a, &a]), "w (pid 7, thread 10) accepts from all of its listeners");
        assert_eq!(why(&[&a, &[]]), "nobody was found who accepts from one of its listeners");
        assert_eq!(why(&[&both, &b]), "2 threads accept from one of its listeners, w (pid 7, thread 10) among them");
        let mut unpinned = Cores::new(None, false);
        assert_eq!(
            chosen(&mut unpinned, &[&a, &b]),
            "none of its workers is pinned to a core, and --no-pin leaves them so"
        );
        let mut others = Cores::new(Some(&[4]), true);
        assert_eq!(chosen(&mut others, &[&a, &b]), "--cores has none that w (pid 7, thread 10) may use");
        let mut preloaded = group(&[&a, &b]);
        preloaded.listeners[1].preloaded = Some(7);
        let why = Cores::new(None, true).choose(&preloaded).unwrap_err();
        assert_eq!(why, "pid 7 is under corelane run, which selects its listeners");
    }
}
