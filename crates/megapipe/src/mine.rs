//! The channels of a thread. A program's pointers and handles are compared with them, and never followed.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::{LazyLock, Mutex, PoisonError};

use capi::{Errno, Result};
use channel::{Channel, Handle};

use crate::engines::Member;

/// A channel that C has a pointer to: its address is its name.
pub struct Slot {
    id: u32,
    channel: RefCell<Channel>,
    // After the channel.
    _engine: Option<Member>,
}

thread_local! {
    static MINE: RefCell<Vec<Rc<Slot>>> = const { RefCell::new(Vec::new()) };
}

/// Of all threads: to tell a wrong thread from a wrong name.
static ALL: LazyLock<Mutex<HashSet<(u32, usize)>>> = LazyLock::new(Mutex::default);

impl Drop for Slot {
    fn drop(&mut self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(id, _)| *id != self.id);
    }
}

fn elsewhere(like: impl Fn(u32, usize) -> bool) -> bool {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(id, at)| like(*id, *at))
}

/// A new channel of this thread.
pub fn add(channel: Channel, engine: Option<Member>) -> Result<*mut Slot> {
    let id = channel.id();
    let slot = Rc::new(Slot { id, channel: RefCell::new(channel), _engine: engine });
    let name = Rc::as_ptr(&slot).cast_mut();
    ALL.lock().unwrap_or_else(PoisonError::into_inner).insert((id, name as usize));
    MINE.with(|mine| mine.try_borrow_mut().map(|mut mine| mine.push(slot))).map_err(|_| Errno::BUSY)?;
    Ok(name)
}

/// The channel that `which` finds among this thread's.
fn find(which: impl Fn(&Slot) -> bool) -> Result<Option<Rc<Slot>>> {
    let found = MINE.try_with(|mine| {
        let mine = mine.try_borrow().map_err(|_| Errno::BUSY)?;
        Ok(mine.iter().find(|slot| which(slot)).cloned())
    });
    // A thread that ends has none any more.
    found.unwrap_or(Ok(None))
}

fn call<T>(slot: &Slot, f: impl FnOnce(&mut Channel) -> std::io::Result<T>) -> Result<T> {
    // In use already: this is a signal handler.
    let mut channel = slot.channel.try_borrow_mut().map_err(|_| Errno::BUSY)?;
    f(&mut channel).map_err(|e| capi::errno::of_io(&e))
}

/// With a channel: EINVAL where there is none of the name, EPERM where it is another thread's.
pub fn with<T>(name: *mut Slot, f: impl FnOnce(&mut Channel) -> std::io::Result<T>) -> Result<T> {
    match find(|slot| std::ptr::eq(slot, name))? {
        Some(slot) => call(&slot, f),
        None if elsewhere(|_, at| at == name as usize) => Err(Errno::PERM),
        None => Err(Errno::INVAL),
    }
}

/// With a handle's channel: EBADF where there is none, EPERM where it is another thread's.
pub fn with_handle<T>(handle: u64, f: impl FnOnce(&mut Channel, Handle) -> std::io::Result<T>) -> Result<T> {
    let handle = Handle::from_bits(handle);
    match find(|slot| slot.id == handle.channel())? {
        Some(slot) => call(&slot, |channel| f(channel, handle)),
        None if elsewhere(|id, _| id == handle.channel()) => Err(Errno::PERM),
        None => Err(Errno::BADF),
    }
}

/// A channel ends.
pub fn remove(name: *mut Slot) -> Result<()> {
    let slot = match find(|slot| std::ptr::eq(slot, name))? {
        Some(slot) => slot,
        None if elsewhere(|_, at| at == name as usize) => return Err(Errno::PERM),
        None => return Err(Errno::INVAL),
    };
    // In use: a signal handler would end what it came into.
    slot.channel.try_borrow_mut().map_err(|_| Errno::BUSY)?;
    MINE.with(|mine| {
        let mut mine = mine.try_borrow_mut().map_err(|_| Errno::BUSY)?;
        mine.retain(|other| !Rc::ptr_eq(other, &slot));
        Ok(())
    })
}
