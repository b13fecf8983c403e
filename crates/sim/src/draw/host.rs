//! Random hosts: link, options of TCP, buffers.

use core::time::Duration;

use io::impair::Random;
use stack::SynCookies;
use tcp::Ecn;
use tcp::congestion::Algorithm;

use super::scale;
use crate::host::HostConfig;

/// Two hosts. Where the path is never cut for long they are patient, so that an end by error is a fault.
pub(crate) fn hosts(r: &mut Random, cut: bool) -> (HostConfig, HostConfig) {
    (host(r, 1, cut), host(r, 2, cut))
}

fn host(r: &mut Random, n: u8, cut: bool) -> HostConfig {
    let mut h = HostConfig::new(n);
    h.mtu = r.pick(&[1500, 1500, 1280, 9000]);
    h.tx_room = 1 + r.below(64) as usize;
    h.chunks = 1 << 14;
    h.gso = r.chance(0.3);
    h.gro = r.chance(0.3);
    let tcp = &mut h.stack.tcp;
    tcp.timestamps = r.chance(0.7);
    tcp.window_scaling = r.chance(0.7);
    tcp.sack = r.chance(0.7);
    tcp.ecn = r.pick(&[Ecn::Never, Ecn::Passive, Ecn::Always]);
    tcp.tail_loss_probe = r.chance(0.7);
    tcp.frto = r.chance(0.7);
    tcp.slow_start_after_idle = r.chance(0.7);
    tcp.pacing = r.chance(0.3);
    tcp.black_hole_timeouts = r.pick(&[1, 2, 3]);
    tcp.congestion = r.pick(&[Algorithm::Cubic, Algorithm::NewReno]);
    tcp.receive_buffer = scale(r, 4096, 8) as u32;
    tcp.receive_buffer_max = tcp.receive_buffer << r.below(5);
    tcp.send_buffer = scale(r, 4096, 8) as u32;
    tcp.send_buffer_max = tcp.send_buffer << r.below(5);
    tcp.initial_window = 1 + r.below(15) as u32;
    tcp.min_rto = Duration::from_millis(r.pick(&[200, 200, 50, 1000]));
    tcp.initial_rto = Duration::from_millis(r.pick(&[1000, 1000, 300, 3000]));
    tcp.max_rto = Duration::from_secs(r.pick(&[120, 10, 60]));
    tcp.syn_linear_timeouts = r.below(5) as u8;
    tcp.delayed_ack = Duration::from_millis(r.pick(&[40, 1, 200, 400]));
    // Now and then handshakes are many for their place, or kept nowhere.
    match r.below(20) {
        0 => h.stack.syn_cookies = SynCookies::Always,
        1 => h.stack.syn_backlog = 1 + r.below(5) as u32,
        2 => (h.stack.syn_cookies, h.stack.syn_backlog) = (SynCookies::Never, 1 + r.below(5) as u32),
        _ => {}
    }
    if !cut {
        tcp.syn_retries = 60;
        tcp.synack_retries = 60;
        tcp.retries = 60;
        tcp.orphan_retries = 60;
        // A FIN that is lost often is sent again every two minutes; a shorter memory would answer it with RST.
        h.stack.time_wait = Duration::from_secs(3600);
    }
    h
}
