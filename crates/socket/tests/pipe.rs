//! Pipes inside a lane, as pipe(7) has them.

mod common;

use common::Lane;
use socket::{Errno, Interest, Ready, SockId, bits};

fn collect(l: &mut Lane, epoll: SockId) -> Vec<(u64, u32)> {
    let mut out = [Ready { events: 0, data: 0 }; 8];
    let n = l.s.epoll_collect(epoll, &mut out).unwrap();
    out[..n].iter().map(|r| (r.data, r.events)).collect()
}

#[test]
fn bytes_go_through_in_order() {
    let mut l = Lane::new();
    let (reader, writer) = l.s.pipe().unwrap();
    let mut buf = [0; 8];
    assert_eq!(l.s.pipe_read(reader, &mut buf), Err(Errno::EAGAIN));
    assert_eq!(l.s.pipe_write(writer, b"hello"), Ok(5));
    assert_eq!(l.s.pipe_write(writer, b" world"), Ok(6));
    assert_eq!(l.s.pipe_available(reader), Ok(11));
    assert_eq!((l.s.pipe_read(reader, &mut buf), &buf), (Ok(8), b"hello wo"));
    assert_eq!((l.s.pipe_read(reader, &mut buf), &buf[..3]), (Ok(3), &b"rld"[..]));
    assert_eq!((l.s.pipe_read(reader, &mut []), l.s.pipe_write(writer, &[])), (Ok(0), Ok(0)));
    l.end();
}

#[test]
fn each_end_has_its_calls() {
    let mut l = Lane::new();
    let (reader, writer) = l.s.pipe().unwrap();
    assert_eq!(l.s.pipe_read(writer, &mut [0]), Err(Errno::EBADF));
    assert_eq!(l.s.pipe_write(reader, b"x"), Err(Errno::EBADF));
    let socket = l.s.socket(false).unwrap();
    assert_eq!(l.s.pipe_read(socket, &mut [0]), Err(Errno::EINVAL));
    assert_eq!(l.s.local(reader), Err(Errno::ENOTSOCK));
    assert_eq!(l.s.pipe_read(SockId(99), &mut [0]), Err(Errno::EBADF));
    l.end();
}

#[test]
fn a_full_pipe_takes_small_writes_whole_or_not_at_all() {
    let mut l = Lane::new();
    let (reader, writer) = l.s.pipe().unwrap();
    assert_eq!(l.s.pipe_write(writer, &[1; 70_000]), Ok(65_536));
    assert_eq!(l.s.pipe_write(writer, &[1]), Err(Errno::EAGAIN));
    l.s.pipe_read(reader, &mut [0; 4095]).unwrap();
    assert_eq!(l.s.pipe_write(writer, &[2; 4096]), Err(Errno::EAGAIN));
    assert_eq!(l.s.pipe_write(writer, &[2; 4095]), Ok(4095));
    l.s.pipe_read(reader, &mut [0; 4096]).unwrap();
    assert_eq!(l.s.pipe_write(writer, &[3; 5000]), Ok(4096));
    l.end();
}

#[test]
fn either_end_hears_of_the_other() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let (reader, writer) = l.s.pipe().unwrap();
    l.s.epoll_add(e, reader, Interest::from_epoll(bits::IN | bits::ET, 1)).unwrap();
    l.s.epoll_add(e, writer, Interest::from_epoll(bits::OUT | bits::ET, 2)).unwrap();
    assert_eq!(collect(&mut l, e), [(2, bits::OUT)]);
    l.s.pipe_write(writer, &[0; 65_536]).unwrap();
    assert_eq!(collect(&mut l, e), [(1, bits::IN)]);
    assert_eq!(l.s.readiness(writer), Ok(0));
    // Room for less than PIPE_BUF is none.
    l.s.pipe_read(reader, &mut [0; 4095]).unwrap();
    assert_eq!(collect(&mut l, e), []);
    l.s.pipe_read(reader, &mut [0; 1]).unwrap();
    assert_eq!(collect(&mut l, e), [(2, bits::OUT)]);
    // What was written is still read once the writer is gone.
    l.s.close(writer).unwrap();
    assert_eq!(collect(&mut l, e), [(1, bits::IN | bits::HUP)]);
    assert_eq!(l.s.pipe_read(reader, &mut [0; 65_536]), Ok(61_440));
    assert_eq!(l.s.pipe_read(reader, &mut [0; 1]), Ok(0));
    l.end();
}

#[test]
fn writing_to_nobody_is_a_broken_pipe() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let (reader, writer) = l.s.pipe().unwrap();
    l.s.epoll_add(e, writer, Interest::from_epoll(0, 2)).unwrap();
    l.s.close(reader).unwrap();
    assert_eq!(collect(&mut l, e), [(2, bits::ERR)]);
    assert_eq!(l.s.pipe_write(writer, b"x"), Err(Errno::EPIPE));
    l.s.close(writer).unwrap();
    assert_eq!(collect(&mut l, e), []);
    l.end();
}

#[test]
fn where_one_end_has_no_number_there_is_no_pipe() {
    let mut l = Lane::with(1, 64, 16);
    assert_eq!(l.s.pipe(), Err(Errno::EMFILE));
    assert!(l.s.is_empty());
    l.end();
}
