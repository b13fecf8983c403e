use super::super::fixed::Fixed;
use super::*;
use proptest::prelude::*;

/// Takes `room` bytes at a time, then blocks until given more.
#[derive(Default)]
struct Pipe {
    taken: Vec<u8>,
    room: usize,
    held: bool,
}

impl Sink for Pipe {
    fn write(&mut self, data: &[u8], more: bool) -> io::Result<usize> {
        let n = data.len().min(self.room);
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.room -= n;
        self.taken.extend_from_slice(&data[..n]);
        self.held = more;
        Ok(n)
    }
}

struct Rig {
    session: Session,
    pipe: Pipe,
    handler: Fixed,
    outputs: Outputs,
}

impl Rig {
    fn new(bytes: usize) -> Rig {
        let pipe = Pipe { room: usize::MAX, ..Pipe::default() };
        Rig { session: Session::default(), pipe, handler: Fixed::new(bytes), outputs: Outputs::default() }
    }

    fn feed(&mut self, bytes: impl AsRef<[u8]>) -> Next {
        let mut scratch = [0; 64];
        let Rig { session, pipe, handler, outputs } = self;
        session.advance(bytes.as_ref(), handler, pipe, &mut scratch, outputs).expect("the pipe is whole")
    }

    /// Statuses seen so far, and drops them.
    fn statuses(&mut self) -> Vec<u16> {
        let text = String::from_utf8(std::mem::take(&mut self.pipe.taken)).expect("text");
        text.split("HTTP/1.1 ").skip(1).map(|rest| rest[..3].parse().expect("a status")).collect()
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn requests_are_answered_in_order_and_the_connection_kept() {
    let mut rig = Rig::new(4);
    assert_eq!(rig.feed(GET), Next::Read);
    assert_eq!(rig.pipe.taken, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nabcd");
    assert!(!rig.pipe.held, "nothing follows, so nothing is held back");
    rig.statuses();
    assert_eq!(rig.feed(GET.repeat(5)), Next::Read);
    assert_eq!(rig.statuses(), [200; 5]);
    assert_eq!(rig.session.phase(), Phase::Idle);
    assert!(rig.session.output.is_none() && rig.session.input.capacity() == 0, "an idle connection holds nothing");
}

#[test]
fn close_is_honoured_and_the_fin_rides_on_the_answer() {
    let mut rig = Rig::new(4);
    assert_eq!(rig.feed("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), Next::Close);
    assert!(rig.pipe.held);
    let mut rig = Rig::new(4);
    assert_eq!(rig.feed("GET / HTTP/1.0\r\n\r\n"), Next::Close);
    let mut rig = Rig::new(4);
    assert_eq!(rig.feed("GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n"), Next::Linger);
    assert_eq!(rig.statuses(), [200]);
}

#[test]
fn head_gets_no_content() {
    let mut rig = Rig::new(4);
    assert_eq!(rig.feed("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"), Next::Read);
    assert_eq!(rig.pipe.taken, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\n");
}

#[test]
fn a_full_sink_stops_parsing_until_there_is_room() {
    let mut rig = Rig::new(20_000);
    rig.pipe.room = 100;
    assert_eq!(rig.feed(GET.repeat(2)), Next::Write);
    assert_eq!(rig.session.phase(), Phase::Answer);
    assert_eq!(rig.session.answered, 1);
    while rig.session.phase() == Phase::Answer {
        rig.pipe.room = 1_000;
        rig.feed("");
    }
    let text = String::from_utf8(rig.pipe.taken.clone()).expect("text");
    assert_eq!(text.matches("Content-Length: 20000").count(), 2);
    let bodies = text.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.split_once("\r\n\r\n"));
    assert!(bodies.map(|(_, body)| body.len()).eq([20_000; 2]));
    assert_eq!(rig.session.phase(), Phase::Idle);
}

#[test]
fn bodies_within_the_limit_are_dropped_and_others_refused() {
    let mut rig = Rig::new(1);
    let post = |length: u64| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    assert_eq!(rig.feed(format!("{}hello{GET}", post(5))), Next::Read);
    assert_eq!(rig.statuses(), [200, 200]);
    assert_eq!(rig.feed(post(10)), Next::Read);
    assert_eq!(rig.session.phase(), Phase::Request);
    assert_eq!(rig.feed("01234"), Next::Read);
    assert_eq!(rig.feed(format!("56789{GET}")), Next::Read);
    assert_eq!(rig.statuses(), [200, 200]);
    assert_eq!(rig.feed(post(MAX_DRAIN + 1)), Next::Linger);
    assert_eq!(rig.statuses(), [413]);
}

#[test]
fn expectations() {
    let mut rig = Rig::new(1);
    assert_eq!(
        rig.feed("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"),
        Next::Linger
    );
    assert_eq!(rig.statuses(), [200]);
    let mut rig = Rig::new(1);
    assert_eq!(rig.feed("GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n"), Next::Linger);
    assert_eq!(rig.statuses(), [417]);
}

#[test]
fn garbage_is_refused_on_sight() {
    let mut rig = Rig::new(1);
    // The start of a TLS handshake: no line end to wait for.
    assert_eq!(rig.feed(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"), Next::Linger);
    assert_eq!(rig.statuses(), [400]);
}

#[test]
fn a_client_that_stops_sending_still_gets_its_answer() {
    let mut rig = Rig::new(1);
    rig.session.end_of_input();
    assert_eq!(rig.feed(GET), Next::Close);
    assert_eq!(rig.statuses(), [200]);
    let mut rig = Rig::new(1);
    assert_eq!(rig.feed(&GET[..9]), Next::Read);
    rig.session.end_of_input();
    assert_eq!(rig.feed(""), Next::Close);
    assert_eq!(rig.statuses(), [0u16; 0]);
}

#[test]
fn an_endless_head_is_refused_at_the_limit() {
    let mut rig = Rig::new(1);
    assert_eq!(rig.feed("GET / HTTP/1.1\r\n"), Next::Read);
    let mut next = Next::Read;
    let mut fed = 0;
    while next == Next::Read && fed < 2 * LIMIT {
        next = rig.feed("A: bcdefghij\r\n");
        fed += 14;
    }
    assert_eq!(next, Next::Linger);
    assert!(fed <= LIMIT + 14);
    assert_eq!(rig.statuses(), [431]);
}

#[test]
fn slow_heads_time_out() {
    let mut rig = Rig::new(1);
    rig.feed(&GET[..9]);
    rig.session.time_out(&mut rig.handler, &mut rig.outputs);
    assert_eq!(rig.feed(""), Next::Linger);
    assert_eq!(rig.statuses(), [408]);
}

#[test]
fn winding_down_ends_after_the_answer_under_way() {
    let mut rig = Rig::new(20_000);
    rig.pipe.room = 100;
    assert_eq!(rig.feed(GET.repeat(2)), Next::Write);
    assert!(!rig.session.wind_down());
    rig.pipe.room = usize::MAX;
    assert_eq!(rig.feed(""), Next::Linger);
    assert_eq!(rig.statuses(), [200]);
    let mut rig = Rig::new(1);
    rig.feed(&GET[..9]);
    assert!(rig.session.wind_down());
}

proptest! {
    /// However the bytes are cut, and however little the sink takes, the same answers come out.
    #[test]
    fn cuts_do_not_matter(kinds in prop::collection::vec(0u8..4, 1..6), cuts in prop::collection::vec(1usize..40, 1..80), room in 1usize..200) {
        let text: String = kinds.iter().map(|kind| match kind {
            0 => "GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
            1 => "\r\n\r\nGET /b HTTP/1.1\nHost: b\n\n",
            2 => "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n\r\n\r\n56789",
            _ => "HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        }).collect();
        let mut whole = Rig::new(7);
        whole.feed(&text);
        let mut cut = Rig::new(7);
        cut.pipe.room = room;
        let mut rest = text.as_bytes();
        for size in cuts.iter().cycle() {
            if rest.is_empty() && cut.session.phase() != Phase::Answer {
                break;
            }
            // A blocked session is not fed, as the server does it.
            let size = if cut.session.phase() == Phase::Answer { 0 } else { (*size).min(rest.len()) };
            cut.pipe.room += room;
            cut.feed(&rest[..size]);
            rest = &rest[size..];
        }
        prop_assert_eq!(&whole.pipe.taken, &cut.pipe.taken);
        prop_assert_eq!(whole.session.answered as usize, kinds.len());
    }

    #[test]
    fn any_bytes_end_in_a_known_state(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..20)) {
        let mut rig = Rig::new(3);
        for chunk in chunks {
            if rig.feed(chunk) != Next::Read {
                break;
            }
        }
    }
}
