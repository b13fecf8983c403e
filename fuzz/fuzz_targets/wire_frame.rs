//! Any bytes into every parser, as they are and with right checksums: nothing panics, nothing reads past its input, and what
//! was parsed lies inside it.
#![no_main]

use corelane_fuzz::{fixed_up, read_all};
use libfuzzer_sys::fuzz_target;
use wire::{Addr, icmpv4, icmpv6, quoted::Quoted, tcp, udp};

fuzz_target!(|data: &[u8]| {
    read_all(data);
    read_all(&fixed_up(data.to_vec()));
    let (a, b) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
    if let Ok(segment) = tcp::Segment::parse(data) {
        assert!(segment.payload.len() + 20 <= data.len());
        let _ = tcp::checksum_ok(a, b, data);
        let _ = tcp::is_pseudo_only(a, b, data);
    }
    let _ = Quoted::parse_v4(data);
    let _ = Quoted::parse_v6(data);
    let _ = udp::Header::parse(data);
    let _ = icmpv4::Message::parse(data);
    let _ = icmpv6::Message::parse(a, b, data);
    // Options survive being written again.
    if data.len() <= 40 {
        let options = tcp::Options::parse(data);
        let mut out = [0; 40];
        let n = options.emit(&mut out, true);
        let again = tcp::Options::parse(&out[..n]);
        assert_eq!(again, tcp::Options { sack: Default::default(), ..options.clone() }, "on a SYN");
        let n = options.emit(&mut out, false);
        let again = tcp::Options::parse(&out[..n]);
        let (sack, all) = (again.sack.as_slice(), options.sack.as_slice());
        assert!(again.timestamps == options.timestamps && all.starts_with(sack), "{again:?} of {options:?}");
        assert!(sack.len() >= all.len().min(3), "{again:?} of {options:?}");
    }
});
