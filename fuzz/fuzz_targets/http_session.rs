//! Any bytes as what a client sends on one connection to the command's web server, in any pieces, to a sink with any room: nothing
//! panics, and pieces make no difference to what is answered, but for a refusal of what never was a whole request.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/cli/src/http"]
mod http {
    pub mod fixed;
    pub mod head;
    pub mod output;
    pub mod session;

    /// The phrases matter to nobody here.
    pub fn reason(_status: u16) -> &'static str {
        "Phrase"
    }
}

use http::fixed::Fixed;
use http::output::Sink;
use http::session::{Next, Outputs, Session};

struct Pipe {
    taken: Vec<u8>,
    room: usize,
}

impl Sink for Pipe {
    fn write(&mut self, data: &[u8], _more: bool) -> std::io::Result<usize> {
        let n = data.len().min(self.room);
        if n == 0 {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        self.room -= n;
        self.taken.extend_from_slice(&data[..n]);
        Ok(n)
    }
}

/// What is answered to `data`, which comes in pieces of `step` bytes, where the sink takes `room` bytes at a time.
fn answered(data: &[u8], step: usize, room: usize, body: usize) -> Vec<u8> {
    let mut session = Session::default();
    let (mut handler, mut outputs) = (Fixed::new(body), Outputs::default());
    let mut pipe = Pipe { taken: Vec::new(), room };
    let mut scratch = [0; 64];
    let mut pieces = data.chunks(step);
    let mut ended = false;
    let mut fresh: &[u8] = &[];
    // Each round reads something, writes something, or is the last.
    for _ in 0..data.len() * 300 + 100_000 {
        match session.advance(fresh, &mut handler, &mut pipe, &mut scratch, &mut outputs).expect("the sink does not fail") {
            Next::Read => match pieces.next() {
                Some(piece) => fresh = piece,
                None if ended => panic!("it reads on behind the end"),
                None => {
                    session.end_of_input();
                    (ended, fresh) = (true, &[]);
                }
            },
            Next::Write => (pipe.room, fresh) = (room, &[]),
            Next::Close | Next::Linger => return pipe.taken,
        }
    }
    panic!("no end");
}

fuzz_target!(|data: &[u8]| {
    let [mode, room, rest @ ..] = data else { return };
    let body = [0, 4, 100, 9000][(mode & 3) as usize];
    let whole = answered(rest, rest.len().max(1), usize::MAX, body);
    let pieces = answered(rest, (*mode as usize >> 2).max(1), *room as usize * 16 + 1, body);
    assert!(whole.is_empty() || whole.starts_with(b"HTTP/1."));
    // What can never become a request is refused at the first look at its head, which in pieces may see too little of it: then
    // its end is waited for.
    let more = whole.strip_prefix(&pieces[..]);
    let refused = |rest: &[u8]| matches!(rest, [] | [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', b'4' | b'5', ..]);
    assert!(more.is_some_and(refused), "{} and {} bytes are answered", whole.len(), pieces.len());
});
