//! Clients in other processes on one stack: what each has, what becomes of it when they go, and that nobody else notices.

mod histories;
mod malice;
mod wire;

use ::wire::Addr;
use protocol::Endpoint;
use socket::{Errno, ListenOptions, Shutdown, SockId, SockOption};
use stack::{Bounds, Ill};

use crate::wire::{MANY, Wire, addr, read};

#[test]
fn a_client_in_another_process_serves_and_leaves_nothing() {
    let mut w = Wire::new();
    let client = w.server.attach(256, 1, MANY);
    let listener = w.listen(client, 0);
    for round in 0..200u32 {
        let ask = round.to_string().repeat(1 + (round as usize * 17) % 900).into_bytes();
        let id = w.connect();
        w.ask(id, &ask);
        let (conn, peer) = w.server.client(client, 0).accept(listener).unwrap();
        assert_eq!(peer.addr, addr(2));
        w.settle();
        let got = read(w.server.client(client, 0), conn).unwrap();
        assert_eq!(got, ask);
        assert_eq!(w.server.client(client, 0).write(conn, &got, false), Ok(got.len()));
        w.server.client(client, 0).close(conn).unwrap();
        w.settle();
        assert_eq!(w.heard(id), Ok(ask));
        assert_eq!(w.heard(id), Ok(vec![]));
        w.peer.sockets().close(id).unwrap();
        w.settle();
    }
    assert_eq!(w.server.take_ill(), []);
    w.server.client(client, 0).close(listener).unwrap();
    w.pass(100);
    assert_eq!(w.server.stack().connections(), 0);
    w.server.kill(client);
    w.is_clean();
}

#[test]
fn a_client_opens_connections_too() {
    let mut w = Wire::new();
    let client = w.server.attach(256, 1, MANY);
    let s = w.peer.sockets();
    let listener = s.socket(false).unwrap();
    s.bind(listener, Endpoint { addr: addr(2), port: 8080 }).unwrap();
    s.listen(listener, ListenOptions { backlog: 4 }).unwrap();
    w.settle();
    let s = w.server.client(client, 0);
    let id = s.socket(false).unwrap();
    assert_eq!(s.connect(id, Endpoint { addr: addr(2), port: 8080 }), Err(Errno::EINPROGRESS));
    w.settle();
    let s = w.server.client(client, 0);
    assert_eq!(s.connect_result(id), Some(Ok(())));
    s.write(id, b"a question", false).unwrap();
    w.settle();
    let (conn, _) = w.peer.sockets().accept(listener).unwrap();
    assert_eq!(read(w.peer.sockets(), conn), Ok(b"a question".to_vec()));
    w.peer.sockets().write(conn, &[7; 50_000], false).unwrap();
    w.settle();
    assert_eq!(read(w.server.client(client, 0), id).unwrap().len(), 50_000);
    // It is asked about its own.
    let query = w.server.client(client, 0).query_info(id).unwrap();
    w.settle();
    let info = w.server.client(client, 0).info_result(query).unwrap().unwrap();
    assert_eq!((info.bytes_received, info.bytes_acked), (50_000, 10));
    w.server.kill(client);
    w.settle();
    assert_eq!(w.heard(conn), Err(Errno::ECONNRESET));
    w.peer.sockets().close(conn).unwrap();
    w.is_clean();
}

/// What a client has accepted is reset when it dies; what it has not goes to another one, with every byte.
#[test]
fn what_a_dead_client_has_not_accepted_others_are_offered() {
    let mut w = Wire::new();
    let [one, two] = [0, 1].map(|_| w.server.attach(256, 1, MANY));
    let [first, second] = [one, two].map(|client| w.listen(client, 0));
    let ids: Vec<SockId> = (0..40).map(|_| w.connect()).collect();
    for id in &ids {
        w.ask(*id, format!("I am {}", id.0).as_bytes());
    }
    // The first accepts a few of its own.
    let waiting = w.server.client(one, 0).waiting(first).unwrap();
    assert!((5..35).contains(&waiting), "{waiting} of 40");
    let mut accepted = 0;
    while accepted < 3 && w.server.client(one, 0).accept(first).is_ok() {
        accepted += 1;
    }
    w.settle();
    w.server.kill(one);
    w.settle();
    assert_eq!(w.server.stack().counters().offered_again as usize, waiting - 3);
    let (mut reset, mut served) = (0, 0);
    while let Ok((conn, _)) = w.server.client(two, 0).accept(second) {
        w.settle();
        let text = read(w.server.client(two, 0), conn).unwrap();
        w.server.client(two, 0).write(conn, &text, false).unwrap();
        w.settle();
    }
    for id in ids {
        match w.heard(id) {
            Ok(text) => {
                assert_eq!(text, format!("I am {}", id.0).into_bytes());
                served += 1;
            }
            Err(e) => {
                assert_eq!(e, Errno::ECONNRESET);
                reset += 1;
            }
        }
        w.peer.sockets().abort(id).ok();
    }
    assert_eq!((reset, served), (3, 37));
    w.settle();
    w.server.kill(two);
    w.is_clean();
}

/// What it had closed before it died is still sent.
#[test]
fn what_a_client_had_closed_arrives_although_it_dies() {
    let mut w = Wire::new();
    let client = w.server.attach(1024, 1, MANY);
    let listener = w.listen(client, 0);
    let id = w.connect();
    w.ask(id, b"all");
    let (conn, _) = w.server.client(client, 0).accept(listener).unwrap();
    w.settle();
    read(w.server.client(client, 0), conn).unwrap();
    let all: Vec<u8> = (0..60_000u32).map(|n| (n * 7) as u8).collect();
    assert_eq!(w.server.client(client, 0).write(conn, &all, false), Ok(all.len()));
    w.server.client(client, 0).close(conn).unwrap();
    // The job is taken, nothing has left yet.
    w.server.settle();
    w.server.kill(client);
    assert_eq!(w.server.stack().clients(), 1, "its chunks are still needed");
    let mut got = Vec::new();
    w.settle();
    while let Ok(more) = w.heard(id) {
        if more.is_empty() {
            break;
        }
        got.extend(more);
        w.pass(1);
    }
    assert!(got == all, "{} of {}", got.len(), all.len());
    w.peer.sockets().close(id).unwrap();
    w.is_clean();
}

/// Two threads of one client have each its own.
#[test]
fn threads_of_a_client_have_seats_of_their_own() {
    let mut w = Wire::new();
    let client = w.server.attach(512, 2, MANY);
    let listeners = [0, 1].map(|thread| w.listen(client, thread));
    let ids: Vec<SockId> = (0..30).map(|_| w.connect()).collect();
    for id in &ids {
        w.ask(*id, b"who?");
    }
    let mut counts = [0, 0];
    for (thread, listener) in listeners.into_iter().enumerate() {
        while let Ok((conn, _)) = w.server.client(client, thread).accept(listener) {
            w.settle();
            assert_eq!(read(w.server.client(client, thread), conn), Ok(b"who?".to_vec()));
            w.server.client(client, thread).write(conn, &[b'0' + thread as u8], false).unwrap();
            w.server.client(client, thread).close(conn).unwrap();
            w.settle();
            counts[thread] += 1;
        }
    }
    assert!(counts[0] > 5 && counts[1] > 5 && counts[0] + counts[1] == 30, "{counts:?}");
    let mut heard = [0, 0];
    for id in ids {
        let text = w.heard(id).unwrap();
        heard[usize::from(text[0] - b'0')] += 1;
        w.peer.sockets().close(id).unwrap();
        w.settle();
    }
    assert_eq!(heard, counts);
    w.pass(100);
    w.server.kill(client);
    w.is_clean();
}

/// A client that does not read holds nobody up, and hears all when it reads again.
#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let mut w = Wire::new();
    let [slow, quick] = [0, 1].map(|_| w.server.attach(2048, 1, MANY));
    let listeners = [slow, quick].map(|client| w.listen(client, 0));
    let ids: Vec<SockId> = (0..60).map(|_| w.connect()).collect();
    let mut of = Vec::new();
    for (client, listener) in [slow, quick].into_iter().zip(listeners) {
        while let Ok((conn, peer)) = w.server.client(client, 0).accept(listener) {
            of.push((client, conn, peer.port));
        }
    }
    w.settle();
    assert_eq!(of.len(), 60);
    w.server.stop(slow, true);
    let ports: Vec<u16> = ids.iter().map(|id| w.peer.sockets().local(*id).unwrap().port).collect();
    let port_of = |id: SockId| ports[ids.iter().position(|other| *other == id).unwrap()];
    for round in 0..20u8 {
        for id in &ids {
            w.ask(*id, &[round; 10]);
        }
        for (client, conn, _) in of.iter().filter(|(client, ..)| *client == quick) {
            let text = read(w.server.client(*client, 0), *conn).unwrap();
            assert_eq!(text, [round; 10]);
            w.server.client(*client, 0).write(*conn, &text, false).unwrap();
        }
        w.settle();
        for id in &ids {
            if of.iter().any(|(client, _, port)| *client == quick && *port == port_of(*id)) {
                assert_eq!(w.heard(*id), Ok(vec![round; 10]));
            }
        }
    }
    assert!(w.server.stack().counters().events_held > 0, "the slow one's ring was full");
    w.server.stop(slow, false);
    // Nagle's algorithm and delayed ACKs wait for each other.
    w.pass(500);
    let whole: Vec<u8> = (0..20u8).flat_map(|round| [round; 10]).collect();
    for (client, conn, _) in of.iter().filter(|(client, ..)| *client == slow) {
        assert_eq!(read(w.server.client(*client, 0), *conn).unwrap(), whole);
    }
    for id in ids {
        w.peer.sockets().abort(id).unwrap();
    }
    w.settle();
    w.server.kill(slow);
    w.server.kill(quick);
    w.is_clean();
}

#[test]
fn a_client_has_no_more_than_it_may() {
    let mut w = Wire::new();
    let client = w.server.attach(256, 1, Bounds { connections: 4, listeners: 1 });
    let listener = w.listen(client, 0);
    let s = w.server.client(client, 0);
    let second = s.socket(false).unwrap();
    s.bind(second, Endpoint { addr: Addr::UNSPECIFIED_V4, port: 81 }).unwrap();
    s.listen(second, ListenOptions { backlog: 1 }).unwrap();
    w.settle();
    assert_eq!(w.server.client(client, 0).listen_result(second), Some(Err(Errno::ENOBUFS)));
    let ids: Vec<SockId> = (0..6).map(|_| w.connect()).collect();
    let accept = |w: &mut Wire| {
        let mut conns = Vec::new();
        while let Ok((conn, _)) = w.server.client(client, 0).accept(listener) {
            conns.push(conn);
        }
        w.settle();
        conns
    };
    let conns = accept(&mut w);
    assert_eq!(conns.len(), 4);
    let s = w.server.client(client, 0);
    let own = s.socket(false).unwrap();
    let _ = s.connect(own, Endpoint { addr: addr(2), port: 9 });
    w.settle();
    assert_eq!(w.server.client(client, 0).connect_result(own), Some(Err(Errno::ENOBUFS)));
    // Those that wait come when others are over.
    for conn in conns {
        w.server.client(client, 0).abort(conn).unwrap();
    }
    w.settle();
    assert_eq!(accept(&mut w).len(), 2);
    for id in ids {
        w.peer.sockets().close(id).unwrap();
    }
    w.settle();
    w.server.kill(client);
    w.is_clean();
}

/// A connection that a client may not have yet waits, and others that found its event ring full do not wait for that.
#[test]
fn a_connection_beyond_the_bound_holds_no_other_up() {
    let mut w = Wire::new();
    let client = w.server.attach(1024, 1, Bounds { connections: 2, listeners: 1 });
    let listener = w.listen(client, 0);
    let ids = [0; 3].map(|_| w.connect());
    w.peer.sockets().set_option(ids[0], SockOption::NoDelay(true)).unwrap();
    let conns = [0; 2].map(|_| w.server.client(client, 0).accept(listener).unwrap().0);
    w.settle();
    w.server.stop(client, true);
    let held = w.server.stack().counters().events_held;
    let mut asked = 0;
    while w.server.stack().counters().events_held == held {
        w.ask(ids[0], b"a");
        asked += 1;
        assert!(asked < 1000, "the ring has no end");
        // Delayed ACKs.
        w.pass(20);
    }
    w.ask(ids[1], b"b");
    w.server.stop(client, false);
    w.settle();
    let s = w.server.client(client, 0);
    assert_eq!([0, 1].map(|n| read(s, conns[n]).map(|text| text.len())), [Ok(asked), Ok(1)]);
    for id in ids {
        w.peer.sockets().abort(id).unwrap();
    }
    w.settle();
    w.server.kill(client);
    w.is_clean();
}

/// More bytes wait on a connection than its client has memory for, and what the client has to say frees none of it.
#[test]
fn a_client_hears_of_a_connection_whose_bytes_do_not_fit_its_memory() {
    let mut w = Wire::new();
    // 64 KiB.
    let client = w.server.attach(32, 1, MANY);
    let listener = w.listen(client, 0);
    let id = w.connect();
    let all: Vec<u8> = (0..200_000u32).map(|n| (n * 7) as u8).collect();
    let mut sent = w.peer.sockets().write(id, &all, false).unwrap();
    w.pass(100);
    let (conn, _) = w.server.client(client, 0).accept(listener).unwrap();
    let mut got = Vec::new();
    for _ in 0..1000 {
        w.pass(1);
        while let Ok(text) = read(w.server.client(client, 0), conn) {
            if text.is_empty() {
                break;
            }
            got.extend(text);
        }
        match sent < all.len() {
            true => sent += w.peer.sockets().write(id, &all[sent..], false).unwrap_or(0),
            false => w.peer.sockets().shutdown(id, Shutdown::Write).unwrap_or(()),
        }
    }
    assert!(got == all, "{} of {} bytes", got.len(), all.len());
    assert_eq!(read(w.server.client(client, 0), conn), Ok(vec![]), "the end comes behind them");
    w.server.client(client, 0).close(conn).unwrap();
    w.peer.sockets().close(id).unwrap();
    w.settle();
    w.server.kill(client);
    w.is_clean();
}

/// A connection whose bytes a client with little memory was told of in parts, and that is parked since, can be written to.
#[test]
fn what_was_told_in_parts_goes_on_after_it_was_parked() {
    let mut w = Wire::new();
    let client = w.server.attach(32, 1, MANY);
    let listener = w.listen(client, 0);
    let conns = [57_344, 5000].map(|bytes| {
        let id = w.connect();
        assert_eq!(w.peer.sockets().write(id, &vec![7; bytes], false), Ok(bytes));
        w.pass(100);
        let (conn, _) = w.server.client(client, 0).accept(listener).unwrap();
        w.pass(10);
        (id, conn)
    });
    w.pass(20_000);
    assert!(w.server.stack().parked() > 0, "nothing is parked");
    let (id, conn) = conns[1];
    let s = w.server.client(client, 0);
    assert_eq!(read(s, conn).map(|text| text.len()), Ok(5000));
    assert_eq!(s.write(conn, b"an answer", false), Ok(9));
    w.settle();
    assert_eq!(w.heard(id), Ok(b"an answer".to_vec()));
    for (id, _) in conns {
        w.peer.sockets().abort(id).unwrap();
    }
    w.settle();
    w.server.kill(client);
    w.is_clean();
}

/// One that names what another one has is ended; the other does not notice.
#[test]
fn a_client_that_names_what_is_not_its_own_is_ended() {
    let mut w = Wire::new();
    let [good, bad] = [0, 1].map(|_| w.server.attach(256, 1, MANY));
    let listener = w.listen(good, 0);
    let id = w.connect();
    w.ask(id, b"hello");
    let (conn, _) = w.server.client(good, 0).accept(listener).unwrap();
    w.settle();
    for way in 0..5 {
        let bad = if way == 0 { bad } else { w.server.attach(256, 1, MANY) };
        w.server.malice(bad, way);
        w.settle();
        let ill = w.server.take_ill();
        assert!(matches!(ill[..], [(who, Ill::Name)] if who == bad), "{way}: {ill:?}");
        w.server.kill(bad);
        w.settle();
    }
    let s = w.server.client(good, 0);
    assert_eq!(read(s, conn), Ok(b"hello".to_vec()));
    s.write(conn, b"there", false).unwrap();
    w.settle();
    assert_eq!(w.heard(id), Ok(b"there".to_vec()));
    assert_eq!(w.server.stack().counters().clients_ended, 5);
    w.peer.sockets().abort(id).unwrap();
    w.settle();
    w.server.kill(good);
    w.is_clean();
}
