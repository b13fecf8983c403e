//! In the place of leases under miri and loom: there is none.

#![allow(missing_docs, reason = "as in the real thing")]

use super::{AttachError, Seat, Shape, StackSeat};
use crate::arena::ArenaError;
use crate::pool::Side;
use crate::ring::Raw;
use crate::spsc;
use crate::sync::AtomicU32;
use rustix::fd::{BorrowedFd, OwnedFd};

#[derive(Clone, Debug)]
pub struct Words(());

impl Words {
    pub fn stack(&self) -> &AtomicU32 {
        unreachable!("none is made")
    }

    pub fn client(&self) -> &AtomicU32 {
        unreachable!("none is made")
    }

    pub fn is_ended(&self) -> bool {
        unreachable!("none is made")
    }

    pub fn end(&self) {
        unreachable!("none is made")
    }
}

pub struct Lease(());

impl Lease {
    pub fn create(_: &Shape, _layout: u64) -> Result<Lease, ArenaError> {
        Err(ArenaError::Foreign("no file is mapped".into()))
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        unreachable!("none is made")
    }

    pub fn seats(&self) -> usize {
        unreachable!("none is made")
    }

    pub fn stack_side(&self) -> Result<Option<Side>, ArenaError> {
        unreachable!("none is made")
    }

    pub fn stack_seat(&self, _: usize, _: &mut Side) -> Option<StackSeat> {
        unreachable!("none is made")
    }
}

pub struct Attached(());

impl Attached {
    pub fn open(_: OwnedFd, _layout: u64) -> Result<Attached, AttachError> {
        Err(AttachError::Strange)
    }

    pub fn seats(&self) -> usize {
        unreachable!("none is made")
    }

    pub fn raw_seat(&self, _: usize) -> Option<(spsc::Producer<Raw>, spsc::Consumer<Raw>)> {
        unreachable!("none is made")
    }

    pub fn seat(&self, _: usize) -> Option<Seat> {
        unreachable!("none is made")
    }
}
