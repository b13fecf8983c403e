//! A port that writes what crosses it into a pcapng file (draft-ietf-opsawg-pcapng), both directions, as it is on the wire:
//! checksums that were left to hardware are finished first.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use wire::burst::{RxBurst, RxFrame, TxCaps, TxOffload, TxSink};

use crate::error::PortError;
use crate::port::{AnyPort, Port, PortCaps, PortCounters, Presence};

/// A capture file that several ports may share.
#[derive(Clone, Debug)]
pub struct Capture(Arc<Mutex<BufWriter<File>>>);

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (12 + body.len().next_multiple_of(4)) as u32;
    let mut b = Vec::with_capacity(len as usize);
    b.extend(kind.to_le_bytes());
    b.extend(len.to_le_bytes());
    b.extend(body);
    b.resize(len as usize - 4, 0);
    b.extend(len.to_le_bytes());
    b
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    b.extend(code.to_le_bytes());
    b.extend((value.len() as u16).to_le_bytes());
    b.extend(value);
    b.resize(b.len().next_multiple_of(4), 0);
    b
}

impl Capture {
    /// A new file with an interface block for each name; the place of a name is the interface's number.
    pub fn create(path: &Path, interfaces: &[String]) -> io::Result<Capture> {
        let mut file = BufWriter::with_capacity(1 << 18, File::create(path)?);
        // Section header: byte order, version 1.0, length unknown.
        let mut section = Vec::new();
        section.extend(0x1a2b_3c4du32.to_le_bytes());
        section.extend([1, 0, 0, 0]);
        section.extend(u64::MAX.to_le_bytes());
        file.write_all(&block(0x0a0d_0d0a, &section))?;
        for name in interfaces {
            // LINKTYPE_ETHERNET, no limit on length; microseconds (if_tsresol 6).
            let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0];
            body.extend(option(2, name.as_bytes()));
            body.extend(option(9, &[6]));
            body.extend(option(0, &[]));
            file.write_all(&block(1, &body))?;
        }
        file.flush()?;
        Ok(Capture(Arc::new(Mutex::new(file))))
    }

    fn packet(&self, interface: u32, frame: &[u8], outbound: bool) {
        let us = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        let mut body = Vec::with_capacity(40 + frame.len());
        body.extend(interface.to_le_bytes());
        body.extend(((us >> 32) as u32).to_le_bytes());
        body.extend((us as u32).to_le_bytes());
        body.extend((frame.len() as u32).to_le_bytes());
        body.extend((frame.len() as u32).to_le_bytes());
        body.extend(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        // epb_flags: inbound 1, outbound 2.
        body.extend(option(2, &(1 + outbound as u32).to_le_bytes()));
        body.extend(option(0, &[]));
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk ends the capture, not the traffic.
        let _ = file.write_all(&block(6, &body));
    }

    fn flush(&self) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

/// A port and the file that gets a copy.
pub struct Tee {
    port: AnyPort,
    capture: Capture,
    interface: u32,
    reserved: Vec<u8>,
    dirty: bool,
}

impl Tee {
    /// Writes what crosses `port` into `capture` as interface number `interface`.
    pub fn new(port: AnyPort, capture: Capture, interface: u32) -> Tee {
        Tee { port, capture, interface, reserved: Vec::new(), dirty: false }
    }
}

impl RxBurst for Tee {
    fn len(&self) -> usize {
        self.port.len()
    }

    fn frame(&self, index: usize) -> RxFrame<'_> {
        self.port.frame(index)
    }
}

impl TxSink for Tee {
    fn caps(&self) -> TxCaps {
        self.port.caps()
    }

    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        // Written here first, so that a copy is at hand when it is committed.
        self.port.reserve(len)?;
        self.reserved.resize(len, 0);
        Some(&mut self.reserved)
    }

    fn room(&mut self) -> usize {
        self.port.room()
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        if let Some(slot) = self.port.reserve(self.reserved.len()) {
            slot[..len].copy_from_slice(&self.reserved[..len]);
            self.port.commit(len, offload);
        }
        let frame = &mut self.reserved[..len];
        if let Some(c) = offload.checksum {
            let (start, at) = (c.start as usize, (c.start + c.offset) as usize);
            let sum = wire::checksum::sum(&frame[start..]).finish();
            frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        self.capture.packet(self.interface, frame, true);
        self.dirty = true;
    }
}

impl Port for Tee {
    fn receive(&mut self, max: usize) -> usize {
        let n = self.port.receive(max);
        for i in 0..n {
            self.capture.packet(self.interface, self.port.frame(i).data, false);
        }
        self.dirty |= n > 0;
        n
    }

    fn release(&mut self) {
        self.port.release();
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.port.flush()
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.port.wake_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        // What was captured can be read while nothing happens.
        if std::mem::take(&mut self.dirty) {
            self.capture.flush();
        }
        self.port.prepare_sleep()
    }

    fn wake_up(&mut self) {
        self.port.wake_up();
    }

    fn due_us(&self) -> Option<u64> {
        self.port.due_us()
    }

    fn take_error(&mut self) -> Option<io::Error> {
        self.port.take_error()
    }

    fn presence(&self) -> Presence {
        self.port.presence()
    }

    fn backlog(&self) -> (u32, u32) {
        self.port.backlog()
    }

    fn caps_of(&self) -> PortCaps {
        self.port.caps_of()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        self.capture.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memwire::{MemConfig, wire};

    /// (interface, direction, frame) of each packet, read back block by block.
    fn read(bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut all) = (0, Vec::new());
        while at < bytes.len() {
            let len = word(at + 4) as usize;
            assert_eq!(word(at + len - 4) as usize, len);
            if word(at) == 6 {
                let n = word(at + 20) as usize;
                let flags = at + 28 + n.next_multiple_of(4);
                assert_eq!(word(flags), 2 | 4 << 16);
                all.push((word(at + 8), word(flags + 4), bytes[at + 28..at + 28 + n].to_vec()));
            }
            at += len;
        }
        assert_eq!(at, bytes.len());
        all
    }

    #[test]
    fn both_directions_are_in_the_file() {
        let path = std::env::temp_dir().join(format!("corelane-{}.pcapng", std::process::id()));
        let (mut a, mut b) = wire(&MemConfig::default()).unwrap();
        let capture = Capture::create(&path, &["mem:wire".into(), "other".into()]).unwrap();
        let mut tee = Tee::new(AnyPort::Mem(a.remove(0)), capture, 1);
        let frame: Vec<u8> = (0..61).collect();
        tee.reserve(100).unwrap()[..61].copy_from_slice(&frame);
        tee.commit(61, TxOffload::default());
        tee.flush().unwrap();
        assert_eq!(b[0].receive(8), 1);
        assert_eq!(b[0].frame(0).data, frame);
        b[0].release();
        b[0].reserve(60).unwrap()[..60].fill(9);
        b[0].commit(60, TxOffload::default());
        b[0].flush().unwrap();
        assert_eq!(tee.receive(8), 1);
        tee.release();
        drop(tee);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes[..4], 0x0a0d_0d0au32.to_le_bytes());
        assert_eq!(read(&bytes), [(1, 2, frame), (1, 1, vec![9; 60])]);
    }
}
