//! Requests that are made and answered within one call of the channel's. Where the ring fails meanwhile, the call does; the
//! request may still be answered later, and what it gives is given back then.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use io_uring::opcode;
use io_uring::squeue::Entry as Sqe;
use io_uring::types::Fixed;

use super::{CALL, Kernel, tag};
use crate::core::Core;
use crate::errno;

/// Memory of a request. The kernel has it until the answer came; where none ever comes, it stays for ever.
struct Place(*mut RawFd);

impl Place {
    fn new(fd: RawFd) -> Place {
        Place(Box::into_raw(Box::new(fd)))
    }

    /// What the kernel has written, once it has answered.
    fn take(self) -> RawFd {
        // SAFETY: of a box, and taken once; the kernel has done with it.
        *unsafe { Box::from_raw(self.0) }
    }
}

/// A request.
struct Call {
    number: u32,
    /// Where the place of the ring's table is told that it takes; what it gives is a descriptor where there is none.
    place: Option<Place>,
    answer: Option<i32>,
    given_up: bool,
}

/// Requests that are not answered, or whose answer is about to be taken.
#[derive(Default)]
pub(super) struct Calls {
    last: u32,
    all: Vec<Call>,
}

impl Calls {
    fn find(&mut self, number: u32) -> Option<&mut Call> {
        self.all.iter_mut().find(|call| call.number == number)
    }

    fn take(&mut self, number: u32) -> Option<Call> {
        let at = self.all.iter().position(|call| call.number == number)?;
        Some(self.all.swap_remove(at))
    }
}

impl Kernel {
    /// The number of the next call, which what goes along with it may name.
    pub(super) fn new_call(&mut self) -> u64 {
        self.calls.last = self.calls.last.wrapping_add(1);
        tag(CALL, 0, self.calls.last)
    }

    /// One request, now, with this number and what goes along with it: what it gives. `cancels` is what of that calls it back.
    pub(super) fn call(
        &mut self,
        core: &mut Core,
        number: u64,
        entries: &[Sqe],
        cancels: &[Sqe],
    ) -> io::Result<OwnedFd> {
        let (answer, _) = self.answer_of(core, number, entries, cancels, None)?;
        // SAFETY: a new descriptor, nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(answer) })
    }

    fn answer_of(
        &mut self,
        core: &mut Core,
        number: u64,
        entries: &[Sqe],
        cancels: &[Sqe],
        place: Option<Place>,
    ) -> io::Result<(i32, Option<Place>)> {
        let number = number as u32;
        self.calls.all.push(Call { number, place, answer: None, given_up: false });
        self.push(core, entries);
        let ended = self.until_called_back(core, cancels, |kernel, _| {
            kernel.calls.all.iter().any(|call| call.number == number && call.answer.is_some())
        });
        if let Err(error) = ended
            && let Some(call) = self.calls.find(number).filter(|call| call.answer.is_none())
        {
            call.given_up = true;
            return Err(error);
        }
        let call = self.calls.take(number).ok_or_else(|| errno(libc::EIO))?;
        match call.answer {
            Some(result @ 0..) => Ok((result, call.place)),
            answer => {
                call.place.map(Place::take);
                Err(errno(answer.map_or(libc::EIO, |answer| -answer)))
            }
        }
    }

    /// The answer to a call; nobody is left to have what it gives where that was given up.
    pub(super) fn answered(&mut self, core: &mut Core, number: u32, result: i32) {
        let Some(call) = self.calls.find(number) else { return };
        if !call.given_up {
            call.answer = Some(result);
            return;
        }
        let Some(call) = self.calls.take(number) else { return };
        match call.place.map(Place::take) {
            _ if result < 0 => {}
            Some(slot) => {
                self.count_place(true);
                self.close_slot(core, slot as u32);
            }
            // SAFETY: a new descriptor, nobody else's.
            None => drop(unsafe { OwnedFd::from_raw_fd(result) }),
        }
    }

    /// A direct descriptor as one of the process, beside it.
    pub fn install(&mut self, core: &mut Core, slot: u32) -> io::Result<OwnedFd> {
        let number = self.new_call();
        self.call(core, number, &[opcode::FixedFdInstall::new(Fixed(slot), 0).build().user_data(number)], &[])
    }

    /// A descriptor's file in the ring's own table.
    pub(super) fn take_in(&mut self, core: &mut Core, fd: BorrowedFd<'_>) -> io::Result<u32> {
        self.direct(core)?;
        let (number, place) = (self.new_call(), Place::new(fd.as_raw_fd()));
        // IORING_FILE_INDEX_ALLOC: any free place, which is written over the descriptor.
        let entry = opcode::FilesUpdate::new(place.0, 1).offset(-1).build();
        let (_, place) = self.answer_of(core, number, &[entry.user_data(number)], &[], Some(place))?;
        let slot = place.ok_or_else(|| errno(libc::EIO))?.take();
        self.count_place(true);
        Ok(slot as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use io_uring::types::Fd;
    use rustix::pipe::pipe;
    use std::os::fd::AsFd;

    fn kernel() -> Option<(Core, Kernel)> {
        let core = Core::new(1, Options { completions: 2, ..Options::default() });
        let kernel = Kernel::new(&core.options).inspect_err(|e| testing::skip(format_args!("a ring: {e}"))).ok()?;
        Some((core, kernel))
    }

    /// The pipe's other end says how many have it.
    fn is_open(read: &OwnedFd) -> bool {
        rustix::io::ioctl_fionbio(read, true).unwrap();
        rustix::io::read(read, &mut [0u8; 1]) != Ok(0)
    }

    /// What a call gives that was given up goes, and is not another's.
    #[test]
    fn the_answer_of_a_call_that_was_given_up_is_nobodys() {
        let Some((mut core, mut kernel)) = kernel() else { return };
        kernel.direct(&core).unwrap();
        let (read, write) = pipe().unwrap();
        for given_up in [false, true] {
            // As a call does, but for the ring, which fails.
            let (number, place) = (kernel.new_call(), Place::new(write.as_raw_fd()));
            let entry = opcode::FilesUpdate::new(place.0, 1).offset(-1).build().user_data(number);
            kernel.calls.all.push(Call { number: number as u32, place: Some(place), answer: None, given_up });
            kernel.push(&mut core, &[entry]);
        }
        kernel.until(&mut core, |kernel, _| kernel.calls.all.iter().all(|call| call.answer.is_some())).unwrap();
        kernel.flush(&mut core).unwrap();
        let Some(Call { answer: Some(1), place: Some(place), .. }) = kernel.calls.all.pop() else {
            panic!("no answer")
        };
        assert!(kernel.calls.all.is_empty());
        let slot = place.take() as u32;
        kernel.count_place(true);
        assert_eq!(kernel.table.as_ref().unwrap().used, 1);
        let installed = kernel.install(&mut core, slot).unwrap();
        kernel.close_slot(&mut core, slot);
        kernel.flush(&mut core).unwrap();
        drop(write);
        assert!(is_open(&read));
        drop(installed);
        assert!(!is_open(&read), "a place of the table has the pipe still");
    }

    /// A ring that takes nothing: who pushes comes back, and who waits hears of it.
    #[test]
    fn a_ring_that_fails_holds_nobody() {
        let Some((mut core, mut kernel)) = kernel() else { return };
        kernel.direct(&core).unwrap();
        let (read, _write) = pipe().unwrap();
        // Another file in the ring's place: io_uring_enter(2) is EOPNOTSUPP.
        let ring = kernel.as_fd().try_clone_to_owned().unwrap();
        let raw = kernel.as_fd().as_raw_fd();
        // SAFETY: the number stays open; what it means is put right before the ring ends.
        assert!(unsafe { libc::dup2(read.as_raw_fd(), raw) } == raw);
        for _ in 0..5 {
            kernel.take_in(&mut core, read.as_fd()).unwrap_err();
            kernel.flush(&mut core).unwrap_err();
        }
        assert!(!kernel.late.is_empty(), "the queue has room for two");
        let late = kernel.new_call();
        let accept = opcode::Accept::new(Fd(-1), std::ptr::null_mut(), std::ptr::null_mut()).build();
        kernel.call(&mut core, late, &[accept.user_data(late)], &[]).unwrap_err();
        // SAFETY: as above.
        assert!(unsafe { libc::dup2(ring.as_raw_fd(), raw) } == raw);
        // All of them are answered now, and nothing stays.
        kernel.until(&mut core, |kernel, _| kernel.calls.all.is_empty()).unwrap();
        assert!(kernel.late.is_empty());
        let slot = kernel.take_in(&mut core, read.as_fd()).unwrap();
        assert_eq!(kernel.table.as_ref().unwrap().used, 1);
        kernel.close_slot(&mut core, slot);
        kernel.flush(&mut core).unwrap();
        assert_eq!(kernel.free_places(), kernel.table.as_ref().unwrap().places);
    }
}
