//! How a process gets what it attaches with: a message on a UNIX socket, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::attached::Join;

/// What a message begins with.
const MAGIC: [u8; 8] = *b"corelane";
/// Descriptors that one message carries at most (SCM_MAX_FD).
const MOST: usize = 253;
/// Those that are no thread's.
const OTHERS: usize = 3;

/// What is said beside the descriptors: all four bytes long, in the machine's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Which lane.
    pub lane: u32,
    /// Local ports that lead to it, from one address towards one remote end, about.
    pub ports: u32,
    /// SO_SNDBUF of new sockets, bytes.
    pub send_buffer: u32,
    /// SO_RCVBUF of new sockets, bytes.
    pub receive_buffer: u32,
}

impl Welcome {
    const BYTES: usize = 16;

    fn to_bytes(self) -> [u8; Welcome::BYTES] {
        let mut bytes = [0; Welcome::BYTES];
        let words = [self.lane, self.ports, self.send_buffer, self.receive_buffer];
        bytes.chunks_exact_mut(4).zip(words).for_each(|(b, word)| b.copy_from_slice(&word.to_ne_bytes()));
        bytes
    }

    fn from_bytes(bytes: &[u8; Welcome::BYTES]) -> Welcome {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Welcome { lane: word(0), ports: word(4), send_buffer: word(8), receive_buffer: word(12) }
    }
}

const HEAD: usize = MAGIC.len() + Welcome::BYTES;

impl Join {
    /// Passes it to the process at the other end of a UNIX socket.
    pub fn send(&self, socket: impl AsFd, welcome: Welcome) -> io::Result<()> {
        let fds = [&self.memory, &self.stack, &self.process].into_iter().chain(&self.threads);
        let fds: Vec<_> = fds.map(AsFd::as_fd).collect();
        if fds.len() > MOST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more threads than one message can carry"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        if !with.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more threads than one message can carry"));
        }
        let head = [&MAGIC[..], &welcome.to_bytes()].concat();
        let sent = sendmsg(socket, &[IoSlice::new(&head)], &mut with, SendFlags::NOSIGNAL)?;
        if sent == head.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Takes what another process passes; errors are a line.
    pub fn receive(socket: impl AsFd) -> io::Result<(Join, Welcome)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let mut head = [0; HEAD];
        let got = recvmsg(socket, &mut [IoSliceMut::new(&mut head)], &mut with, RecvFlags::CMSG_CLOEXEC)?;
        let mut fds: Vec<OwnedFd> = with
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
                _ => Vec::new(),
            })
            .collect();
        let (magic, words) = head.split_at(MAGIC.len());
        let Ok(words) = words.try_into() else { return Err(io::ErrorKind::InvalidData.into()) };
        if got.bytes != HEAD || magic != MAGIC || fds.len() <= OTHERS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "what came by the socket is no stack's welcome"));
        }
        let threads = fds.split_off(OTHERS);
        let mut others = fds.into_iter();
        let (Some(memory), Some(stack), Some(process)) = (others.next(), others.next(), others.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok((Join { memory, stack, threads, process }, Welcome::from_bytes(words)))
    }
}
