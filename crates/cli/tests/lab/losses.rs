//! Frames that are lost before a lane sees them.

use io::{Port, packet};
use wire::burst::TxSink;

use super::*;

/// A server that stands still: what its rings do not hold is lost, and told once it goes on.
#[test]
fn frames_that_find_no_room_are_told_with_what_to_do() {
    let Some(lab) = Lab::new() else { return };
    let mut server = lab.serve(&lab.b, "--dev xdp:vb --port 80");
    lab.curl(&lab.a, "http://10.99.0.2/index.html");
    server.signal(rustix::process::Signal::STOP);
    lab.within(&lab.a, || {
        let to = must("ip -j neigh show 10.99.0.2 dev va");
        let to: serde_json::Value = serde_json::from_str(&to).unwrap();
        let to: Vec<u8> =
            (to[0]["lladdr"].as_str().unwrap().split(':')).map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let mut port = packet::open("va", 1, true).unwrap().remove(0);
        // Acknowledgments of no connection, more than rings of 16,384 slots hold.
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&to);
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6]);
        frame[26..38].copy_from_slice(&[10, 99, 0, 1, 10, 99, 0, 2, 0x99, 0x99, 0, 80]);
        frame[46..48].copy_from_slice(&[0x50, 0x10]);
        for _ in 0..20_000 {
            port.reserve(60).unwrap()[..60].copy_from_slice(&frame);
            port.commit(60, Default::default());
            if port.room() == 0 {
                port.flush().unwrap();
            }
        }
    });
    server.signal(rustix::process::Signal::CONT);
    lab.curl(&lab.a, "http://10.99.0.2/index.html");
    let said = server.says_until("frames lost on the way in");
    assert!(said.contains("xdp:vb") && said.contains("no room") && !said.contains("gro off"), "{said}");
    assert_eq!(server.stop(), Some(0));
}
