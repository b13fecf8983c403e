//! Two machines at the two ends of a wire.

use ::wire::Addr;
use protocol::Endpoint;
use sim::{Machine, MachineConfig};
use socket::{Errno, ListenOptions, SockId, SockOption, Sockets};
use stack::Bounds;

pub const PORT: u16 = 80;
pub const MANY: Bounds = Bounds { connections: 1000, listeners: 10 };

pub fn addr(n: u8) -> Addr {
    Addr::from_v4([192, 168, 0, n])
}

/// Two machines at the two ends of a wire: clients of others serve at the first one, an application of its own asks at the second.
pub struct Wire {
    pub server: Machine,
    pub peer: Machine,
}

impl Wire {
    pub fn new() -> Wire {
        let machine = |n: u8| {
            // Alone on its link: the other one is behind the hop that is known.
            let addresses = vec![([192, 168, 0, n].into(), 32)];
            let mut config = MachineConfig { addresses, seed: n.into(), ..MachineConfig::default() };
            config.stack.time_wait = core::time::Duration::from_millis(10);
            Machine::new(config)
        };
        Wire { server: machine(1), peer: machine(2) }
    }

    /// Until nothing moves.
    pub fn settle(&mut self) {
        self.server.settle();
        self.peer.settle();
        loop {
            let mut moved = false;
            while let Some((_, packet)) = self.server.pop() {
                self.peer.inject(&packet);
                moved = true;
            }
            while let Some((_, packet)) = self.peer.pop() {
                self.server.inject(&packet);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// Time passes at both ends.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            let next = self.server.now().plus_micros(1000);
            self.server.advance_to(next);
            self.peer.advance_to(next);
            self.settle();
        }
    }

    pub fn listen(&mut self, client: usize, thread: usize) -> SockId {
        let id = self.listen_at(client, thread, PORT);
        assert_eq!(self.server.client(client, thread).listen_result(id), Some(Ok(())));
        id
    }

    pub fn listen_at(&mut self, client: usize, thread: usize, port: u16) -> SockId {
        let s = self.server.client(client, thread);
        let id = s.socket(false).unwrap();
        s.set_option(id, SockOption::ReusePort(port == PORT)).unwrap();
        s.bind(id, Endpoint { addr: Addr::UNSPECIFIED_V4, port }).unwrap();
        s.listen(id, ListenOptions { backlog: 64 }).unwrap();
        self.settle();
        id
    }

    pub fn connect(&mut self) -> SockId {
        self.connect_to(PORT)
    }

    pub fn connect_to(&mut self, port: u16) -> SockId {
        let s = self.peer.sockets();
        let id = s.socket(false).unwrap();
        assert_eq!(s.connect(id, Endpoint { addr: addr(1), port }), Err(Errno::EINPROGRESS));
        self.settle();
        id
    }

    pub fn ask(&mut self, id: SockId, text: &[u8]) {
        assert_eq!(self.peer.sockets().write(id, text, false), Ok(text.len()));
        self.settle();
    }

    pub fn heard(&mut self, id: SockId) -> Result<Vec<u8>, Errno> {
        read(self.peer.sockets(), id)
    }

    /// Nothing is left of anybody.
    pub fn is_clean(&mut self) {
        self.pass(100);
        assert_eq!((self.server.stack().connections(), self.server.stack().clients()), (0, 0));
        assert_eq!(self.server.leaked(), 0, "chunks of the stack's own");
        self.server.stack().check();
    }
}

pub fn read(s: &mut Sockets, id: SockId) -> Result<Vec<u8>, Errno> {
    let mut all = vec![0; 100_000];
    let n = s.read(id, &mut all)?;
    all.truncate(n);
    Ok(all)
}
