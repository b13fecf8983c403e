//! Random histories of clients over a network and a clock of the test's. What a client can bring about does not depend on why
//! it does what it does: who neither takes an answer at the least rate nor finishes one is rid of within a bound, and who does
//! is never reset.

use super::*;
use crate::http::fixed::Fixed;
use proptest::prelude::*;

/// What a client has sent and taken.
#[derive(Default)]
struct Client {
    input: Vec<u8>,
    room: usize,
    ended: bool,
    /// Under which the server watches it.
    key: Option<u64>,
    taken: u64,
    over: bool,
    /// Input and room since it was last told.
    news: (bool, bool),
}

/// Clients by number.
#[derive(Default)]
struct Crowd(Vec<Client>);

impl Net for Crowd {
    type Stream = usize;

    fn accept(&mut self, _: usize) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn stop_listening(&mut self) {}

    fn connect(&mut self, _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connected(&mut self, _: &usize) -> io::Result<()> {
        Ok(())
    }

    fn watch(&mut self, client: &usize, key: u64) -> io::Result<()> {
        self.0[*client].key = Some(key);
        Ok(())
    }

    fn read(&mut self, client: &usize, buffer: &mut [u8]) -> io::Result<usize> {
        let client = &mut self.0[*client];
        let n = client.input.len().min(buffer.len());
        if n == 0 && !client.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        buffer[..n].copy_from_slice(&client.input[..n]);
        client.input.drain(..n);
        Ok(n)
    }

    fn write(&mut self, client: &usize, data: &[u8], _: bool) -> io::Result<usize> {
        let client = &mut self.0[*client];
        let n = data.len().min(client.room);
        if n == 0 && !data.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        client.room -= n;
        client.taken += n as u64;
        Ok(n)
    }

    fn shutdown(&mut self, _: &usize) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self, client: usize) {
        self.0[client].over = true;
    }

    fn abort(&mut self, client: usize) {
        self.0[client].over = true;
    }

    fn wait(&mut self, _: &mut Vec<Ready>, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// Of the clients, those that do what they should: they take a little more than the least, or all, and ask again in time.
const STEADY: usize = 0;
const PROMPT: usize = 1;
/// The others do anything.
const CLIENTS: usize = 7;
/// Seconds of a step at most.
const STEP: u64 = 25;

/// What a client does in a step: send some of this, take so many bytes, and whether the network announces the room.
type Act = (u8, u16, bool);

/// A connection as its client sees it.
struct Watched {
    /// When it began, or had its last whole answer.
    good: Instant,
    /// What had been taken when.
    taken: Vec<(Instant, u64)>,
}

struct Play {
    server: Server<Crowd, Fixed>,
    /// Bytes of an answer, head included.
    answer: u64,
    start: Instant,
    /// By place: the client that is there now.
    there: [(usize, Watched); CLIENTS],
}

impl Play {
    fn new(body: usize) -> Play {
        let server = Server::new(Crowd::default(), Fixed::new(body));
        let start = server.now;
        let there = std::array::from_fn(|_| (0, Watched { good: start, taken: Vec::new() }));
        let mut play = Play { server, answer: Fixed::new(body).whole(false).len() as u64, start, there };
        (0..CLIENTS).for_each(|at| play.enter(at));
        play
    }

    fn enter(&mut self, at: usize) {
        let client = self.server.net.0.len();
        self.server.net.0.push(Client::default());
        self.there[at] = (client, Watched { good: self.server.now, taken: vec![(self.server.now, 0)] });
        if at <= PROMPT {
            self.sends(at, GET);
        }
        if at == PROMPT {
            self.takes(at, self.answer as usize, false);
        }
        self.server.welcome(client);
    }

    /// Time passes; what is due meanwhile happens when it is due.
    fn pass(&mut self, seconds: u64) {
        let until = self.server.now + Duration::from_secs(seconds);
        while let Some(due) = self.server.timers.next_due().filter(|due| *due <= until) {
            self.server.now = due.max(self.server.now);
            self.server.expire();
        }
        self.server.now = until;
    }

    fn client(&mut self, at: usize) -> &mut Client {
        &mut self.server.net.0[self.there[at].0]
    }

    fn sends(&mut self, at: usize, bytes: &[u8]) {
        let client = self.client(at);
        client.input.extend_from_slice(bytes);
        client.news.0 |= !bytes.is_empty();
    }

    fn takes(&mut self, at: usize, room: usize, announced: bool) {
        let client = self.client(at);
        client.room = client.room.saturating_add(room);
        client.news.1 |= announced && room > 0;
    }

    /// The network tells the server.
    fn tell(&mut self, at: usize) {
        let client = self.client(at);
        let ((read, write), ended) = (std::mem::take(&mut client.news), client.ended);
        if let Some(key) = client.key.filter(|_| !client.over && (read || write || ended)) {
            self.server.wake(Ready { key, read: read || ended, write, ended });
        }
    }

    fn step(&mut self, seconds: u64, tastes: &[u8; CLIENTS], acts: &[Act; CLIENTS]) {
        self.pass(seconds);
        let least = self.server.limits.least_rate;
        for at in 0..CLIENTS {
            let (what, amount, announced) = acts[at];
            match at {
                STEADY => {
                    let taken = self.client(at).taken;
                    if taken > 0 && taken.is_multiple_of(self.answer) {
                        self.sends(at, GET);
                    }
                    self.takes(at, (seconds * least * 5 / 4) as usize + 1, true);
                }
                PROMPT => {
                    self.sends(at, GET);
                    self.takes(at, self.answer as usize, true);
                }
                _ => {
                    let said: &[u8] = match what {
                        0 => GET,
                        1 => b"x",
                        2 => &GET[..20],
                        3 => &GET[20..],
                        4 => b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n",
                        5 if amount < 200 => {
                            self.client(at).ended = true;
                            &[]
                        }
                        _ => &[],
                    };
                    // A taste for sending, one for taking a little or much, or for all of it.
                    let taste = tastes[at];
                    if taste & 1 != 0 || what == 0 {
                        self.sends(at, said);
                    }
                    match taste >> 1 & 3 {
                        0 => {}
                        1 => self.takes(at, amount as usize % 100, announced),
                        2 => self.takes(at, amount as usize, announced),
                        _ => self.takes(at, amount as usize * 100, announced),
                    }
                }
            }
            self.tell(at);
        }
        self.server.expire();
        self.judge();
        for at in 0..CLIENTS {
            if self.client(at).over {
                assert!(at > PROMPT, "client {at} did what it should, and was reset after {:?}", self.elapsed());
                self.enter(at);
            }
        }
    }

    fn elapsed(&self) -> Duration {
        self.server.now - self.start
    }

    fn judge(&mut self) {
        let Limits { timeouts, least_rate, linger, .. } = self.server.limits;
        let [head, idle, write, silent] = timeouts;
        let (now, late) = (self.server.now, Duration::from_secs(2 * STEP));
        // An average over a time that is at least `write`, and not yet twice that when the next begins.
        let long = 4 * write;
        let least = (least_rate as f64 * write.as_secs_f64()) as u64;
        for (at, (client, watched)) in self.there.iter_mut().enumerate() {
            let client = &self.server.net.0[*client];
            let last = watched.taken.last().map_or(0, |(_, taken)| *taken);
            if client.taken / self.answer > last / self.answer {
                watched.good = now;
            }
            watched.taken.push((now, client.taken));
            let before = watched.taken.iter().rev().find(|(when, _)| *when + long <= now).map(|(_, taken)| *taken);
            let fast = before.is_none_or(|before| client.taken - before >= least);
            let bound = idle + head + long + linger + silent + late;
            assert!(
                client.over || fast || now - watched.good <= bound,
                "client {at} is there after {:?} without a whole answer, and took {} bytes",
                now - watched.good,
                client.taken - before.unwrap_or(0),
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn everybody_has_his_time_and_nobody_more(
        body in prop::sample::select(&[0usize, 1000, 100_000, 400_000][..]),
        tastes in any::<[u8; CLIENTS]>(),
        steps in prop::collection::vec((0..=STEP, any::<[(u8, u16, bool); CLIENTS]>()), 40..120),
    ) {
        let mut play = Play::new(body);
        for (seconds, acts) in steps {
            let acts = acts.map(|(what, amount, announced)| (what % 12, amount % 3000, announced));
            play.step(seconds, &tastes, &acts);
        }
    }
}
