//! Sends back what it receives.

use std::collections::HashMap;

use protocol::{CloseMode, ConnId, Endpoint, Event, Job, ListenerId, Token};

use crate::host::Host;

/// Sends back what it receives, and closes after the peer.
#[derive(Default)]
pub struct Echo {
    listener: Option<ListenerId>,
    conns: HashMap<ConnId, EchoConn>,
    /// Connections accepted.
    pub accepted: usize,
}

#[derive(Default)]
struct EchoConn {
    fin: bool,
}

impl Echo {
    /// Listens on `local`.
    pub fn start(host: &mut Host, local: Endpoint) -> Echo {
        host.job(Job::Listen {
            token: Token(u32::MAX),
            local,
            backlog: 1024,
            v6_only: false,
            reuse_port: false,
            receive_buffer: 0,
        });
        Echo::default()
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        self.conns.len()
    }

    /// Takes one event.
    pub fn on_event(&mut self, host: &mut Host, event: Event) {
        match event {
            Event::Listening { listener, .. } => self.listener = Some(listener),
            Event::Refused { failure, .. } => panic!("listen: {failure:?}"),
            Event::Accepted { listener, conn, .. } => {
                assert_eq!(Some(listener), self.listener);
                self.accepted += 1;
                self.conns.insert(conn, EchoConn::default());
                host.job(Job::Taken { listener, count: 1 });
            }
            Event::Data { conn, chain, .. } => {
                assert!(self.conns.contains_key(&conn), "data for a connection that was not accepted");
                let bytes = chain.len() as u32;
                host.job(Job::Write { conn, chain, more: false, close: false });
                host.job(Job::Consumed { conn, bytes });
            }
            Event::Fin { conn } => {
                let Some(c) = self.conns.get_mut(&conn) else { panic!("FIN for nobody") };
                assert!(!c.fin, "a second FIN");
                c.fin = true;
                self.conns.remove(&conn);
                host.job(Job::Close { conn, mode: CloseMode::Graceful });
            }
            Event::Failed { conn, .. } => {
                self.conns.remove(&conn);
                host.job(Job::Close { conn, mode: CloseMode::Graceful });
            }
            Event::Acked { .. }
            | Event::Connected { .. }
            | Event::Closed { .. }
            | Event::Sent { .. }
            | Event::Room { .. }
            | Event::Urgent { .. } => {}
            Event::Opened { .. } | Event::Info { .. } | Event::Released { .. } => panic!("not asked for"),
        }
    }
}
