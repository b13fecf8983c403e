//! The channels of a thread. A program's pointers and handles are compared with them, and never followed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use capi::{Errno, Result};
use channel::{Channel, Handle};
use runtime::forks::{self, Lock};

use crate::engines::{self, Member};

/// A channel. C's pointer to it is its [`name`], a number that no other channel has had.
pub struct Slot {
    id: u32,
    /// The process that made it.
    forks: u32,
    /// It ends in that process alone.
    own: ManuallyDrop<Own>,
}

struct Own {
    channel: RefCell<Channel>,
    // After the channel.
    engine: Option<Member>,
}

/// What C has for a pointer: never followed, and not given again when the channel is gone.
fn name(id: u32) -> *mut Slot {
    std::ptr::without_provenance_mut((id as usize) << 16 | 0x6d70)
}

/// The channels of a thread; those that a fork has copied stay as they are.
struct Mine(ManuallyDrop<RefCell<Vec<Rc<Slot>>>>);

impl Drop for Mine {
    fn drop(&mut self) {
        let all = self.0.get_mut();
        all.retain(|slot| slot.forks != forks::count());
        if all.is_empty() {
            // SAFETY: it is dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

thread_local! {
    static MINE: Mine = const { Mine(ManuallyDrop::new(RefCell::new(Vec::new()))) };
}

/// Of all threads: to tell a wrong thread from a wrong name.
static ALL: Lock<BTreeSet<u32>> = Lock::new(BTreeSet::new());

impl Drop for Slot {
    fn drop(&mut self) {
        if self.forks != forks::count() {
            return;
        }
        // SAFETY: it is dropped here alone.
        unsafe { ManuallyDrop::drop(&mut self.own) };
        ALL.lock().remove(&self.id);
    }
}

/// Whether another thread has such a channel.
fn elsewhere(like: impl Fn(u32) -> bool) -> bool {
    ALL.lock().iter().any(|id| like(*id))
}

/// With this thread's channels: ESRCH where it is about to end, and has no place for them any more.
fn mine<T>(f: impl FnOnce(&mut Vec<Rc<Slot>>) -> T) -> Result<T> {
    let done = MINE.try_with(|mine| mine.0.try_borrow_mut().map(|mut mine| f(&mut mine)));
    done.map_err(|_| Errno::SRCH)?.map_err(|_| Errno::BUSY)
}

/// Whether this thread can have channels; the errors of [`add`].
pub fn check() -> Result<()> {
    mine(|_| ())
}

/// A new channel of this thread. ESRCH: it is about to end.
pub fn add(channel: Channel, engine: Option<Member>) -> Result<*mut Slot> {
    let id = channel.id();
    let own = ManuallyDrop::new(Own { channel: RefCell::new(channel), engine });
    let slot = Rc::new(Slot { id, forks: forks::watch(), own });
    ALL.lock().insert(id);
    mine(|mine| mine.push(slot))?;
    Ok(name(id))
}

/// The channel that `which` finds among this thread's.
fn find(which: impl Fn(&Slot) -> bool) -> Result<Option<Rc<Slot>>> {
    let found = MINE.try_with(|mine| {
        let mine = mine.0.try_borrow().map_err(|_| Errno::BUSY)?;
        let ours = |slot: &Rc<Slot>| slot.forks == forks::count() && which(slot);
        Ok(mine.iter().find(|slot| ours(slot)).cloned())
    });
    // A thread that ends has none any more.
    found.unwrap_or(Ok(None))
}

fn call<T>(slot: &Slot, f: impl FnOnce(&mut Channel) -> std::io::Result<T>) -> Result<T> {
    // In use already: this is a signal handler.
    let mut channel = slot.own.channel.try_borrow_mut().map_err(|_| Errno::BUSY)?;
    f(&mut channel).map_err(|e| capi::errno::of_io(&e))
}

/// With a channel: EINVAL where there is none of the name, EPERM where it is another thread's or the parent's.
pub fn with<T>(of: *mut Slot, f: impl FnOnce(&mut Channel) -> std::io::Result<T>) -> Result<T> {
    match find(|slot| std::ptr::eq(name(slot.id), of))? {
        Some(slot) => call(&slot, f),
        None if elsewhere(|id| std::ptr::eq(name(id), of)) => Err(Errno::PERM),
        None => Err(Errno::INVAL),
    }
}

/// With a handle's channel: EBADF where there is none, EPERM where it is another thread's or the parent's.
pub fn with_handle<T>(handle: u64, f: impl FnOnce(&mut Channel, Handle) -> std::io::Result<T>) -> Result<T> {
    let handle = Handle::from_bits(handle);
    match find(|slot| slot.id == handle.channel())? {
        Some(slot) => call(&slot, |channel| f(channel, handle)),
        None if elsewhere(|id| id == handle.channel()) => Err(Errno::PERM),
        None => Err(Errno::BADF),
    }
}

/// A channel of this thread listens.
pub fn listens(of: *mut Slot) {
    if let Ok(Some(slot)) = find(|slot| std::ptr::eq(name(slot.id), of))
        && let Some(member) = &slot.own.engine
    {
        engines::listens(member);
    }
}

/// A channel ends.
pub fn remove(of: *mut Slot) -> Result<()> {
    let slot = match find(|slot| std::ptr::eq(name(slot.id), of))? {
        Some(slot) => slot,
        None if elsewhere(|id| std::ptr::eq(name(id), of)) => return Err(Errno::PERM),
        None => return Err(Errno::INVAL),
    };
    // In use: a signal handler would end what it came into.
    slot.own.channel.try_borrow_mut().map_err(|_| Errno::BUSY)?;
    mine(|mine| mine.retain(|other| !Rc::ptr_eq(other, &slot)))
}
