//! The snapshot (`tcp_info`), its encoding, and the statistics.

use tcp::{Config, Notice, State, TcpInfo};

use crate::peer::{Peer, open, plain};

#[test]
fn a_snapshot_survives_its_encoding() {
    let mut p = Peer::server();
    p.write(3000);
    p.drain();
    p.inject("P. 1:101(100) ack 1001 win 15000");
    p.inject("P. 201:301(100) ack 1001 win 15000");
    p.drain();
    let info = p.info();
    let bytes = info.to_bytes();
    assert_eq!(bytes.len(), TcpInfo::BYTES);
    assert_eq!(TcpInfo::from_bytes(&bytes), Some(info));
    assert_eq!(TcpInfo::from_bytes(&bytes[..TcpInfo::BYTES - 1]), None);
    assert_eq!(bytes[..8], 1u64.to_le_bytes());
    for state in [
        State::Established,
        State::SynSent,
        State::SynReceived,
        State::FinWait1,
        State::FinWait2,
        State::TimeWait,
        State::Closed,
        State::CloseWait,
        State::LastAck,
        State::Listen,
        State::Closing,
    ] {
        let info = TcpInfo { state, ..TcpInfo::default() };
        assert_eq!(TcpInfo::from_bytes(&info.to_bytes()), Some(info));
    }
    assert_eq!(State::Established.name(), "ESTAB");
    assert_eq!(State::TimeWait.name(), "TIME-WAIT");
}

#[test]
fn bytes_and_segments_are_counted() {
    let mut p = Peer::server();
    p.write(2500);
    p.drain();
    p.write(1500);
    p.inject("P. 1:101(100) ack 1001 win 15000");
    p.inject("P. 201:301(100) ack 1501 win 15000");
    let i = p.info();
    assert_eq!((i.unacked_bytes, i.notsent_bytes, i.bytes_acked, i.bytes_received), (1000, 1500, 1500, 100));
    assert_eq!((i.bytes_sent, i.bytes_retrans, i.snd_wnd, i.rcv_wnd), (2500, 0, 15_000, 19_900));
    // SYN, ACK, two with data in; SYN/ACK and three segments out.
    assert_eq!((i.segs_in, i.segs_out, i.rcv_ooopack, i.rcv_mss, i.pmtu), (3, 4, 1, 536, 1040));
    p.drain();
}

/// The application hears of acknowledged bytes in quarters of its buffer.
#[test]
fn acknowledged_bytes_are_reported_in_quarters() {
    let mut p = Peer::server_with(Config { send_buffer: 8000, send_buffer_max: 8000, ..plain() });
    p.write(10_000);
    p.drain();
    p.inject(". 1:1(0) ack 2000 win 20000");
    assert_eq!(p.take_notice(), Notice::default());
    p.inject(". 1:1(0) ack 2001 win 20000");
    assert_eq!((p.take_notice(), p.take_acked(), p.take_acked()), (Notice::ACKED, 2000, 0));
    p.set_send_buffer(16_000);
    p.inject(". 1:1(0) ack 6000 win 20000");
    assert_eq!(p.take_notice(), Notice::default());
    p.inject(". 1:1(0) ack 6001 win 20000");
    assert_eq!((p.take_notice(), p.take_acked()), (Notice::ACKED, 4000));
    p.set_send_buffer(1);
    p.inject(". 1:1(0) ack 6512 win 20000");
    assert_eq!(p.take_notice(), Notice::default());
    p.inject(". 1:1(0) ack 6513 win 20000");
    assert_eq!(p.take_notice(), Notice::ACKED);
    // Nobody is told once it has closed.
    p.close();
    p.drain();
    p.inject(". 1:1(0) ack 9001 win 20000");
    assert_eq!(p.take_notice(), Notice::default());
}

/// Of a buffer that becomes smaller a quarter may be acknowledged already: nothing more may come that would tell of it.
#[test]
fn a_smaller_buffer_tells_what_is_acknowledged() {
    let mut p = Peer::server_with(Config { send_buffer: 80_000, send_buffer_max: 80_000, ..plain() });
    p.write(10_000);
    p.drain();
    p.inject(". 1:1(0) ack 10001 win 20000");
    assert_eq!(p.take_notice(), Notice::default());
    p.set_send_buffer(40_001);
    assert_eq!((p.take_notice(), p.take_acked()), (Notice::ACKED, 10_000));
    p.set_send_buffer(4000);
    assert_eq!(p.take_notice(), Notice::default());
}

#[test]
fn sequence_numbers_for_time_wait() {
    let mut p = Peer::server();
    p.write(10);
    p.shutdown();
    p.drain();
    p.inject("FP. 1:21(20) ack 12 win 20000");
    p.drain();
    assert_eq!(p.state(), State::TimeWait);
    assert_eq!((p.snd_nxt(), p.snd_una()), (crate::peer::ISS + 12, crate::peer::ISS + 12));
    assert_eq!(p.rcv_nxt(), crate::peer::IRS + 22);
    assert_eq!(p.timestamps(), None);
    p.read();
}

#[test]
fn counters_have_names() {
    let mut p = Peer::connecting(plain(), open());
    p.drain();
    p.timer_ms(1000);
    p.drain();
    let rows: Vec<_> = p.counters.rows().filter(|(_, n)| *n > 0).collect();
    assert_eq!(rows, [("timeouts", 1), ("syn_retransmits", 1)]);
}

/// What came and went last, and what was offered, as Linux tells it.
#[test]
fn times_since_and_the_size_offered() {
    let mut p = Peer::server();
    p.wait_ms(30);
    let i = p.info();
    assert_eq!((i.last_data_recv_ms, i.last_ack_recv_ms), (30, 30), "since the handshake");
    p.inject("P. 1:101(100) ack 1 win 15000");
    p.drain();
    p.wait_ms(10);
    p.write(100);
    p.drain();
    p.wait_ms(5);
    p.inject(". 101:101(0) ack 101 win 15000");
    p.wait_ms(7);
    let i = p.info();
    assert_eq!((i.last_data_recv_ms, i.last_data_sent_ms, i.last_ack_recv_ms), (22, 12, 7));
    assert_eq!((i.advmss, i.reord_seen), (1000, 0));
}
