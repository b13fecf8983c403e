//! The sharing program over single frames (BPF_PROG_TEST_RUN).

use std::time::Duration;

use io::bpf::{Maps, Program, VERDICTS, Verdict, steer_for};

/// The program and its maps.
pub struct Bench {
    pub maps: Maps,
    program: Program,
}

impl Bench {
    /// `None` where this user may not load a program: then the test is skipped.
    pub fn new() -> Option<Bench> {
        Bench::with(Duration::from_secs(30))
    }

    /// The same with another life of fragments.
    pub fn with(fragment_life: Duration) -> Option<Bench> {
        let maps = match Maps::new(4) {
            Ok(maps) => maps,
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                testing::skip(format_args!("needs CAP_BPF and CAP_NET_ADMIN ({e})"));
                return None;
            }
            Err(e) => panic!("maps: {e}"),
        };
        let insns = steer_for(&maps, None, fragment_life);
        let program = Program::load_xdp("corelane", &insns, true).expect("the verifier accepts the program");
        Some(Bench { maps, program })
    }

    /// What the program says of a frame.
    pub fn verdict(&self, frame: &[u8]) -> Verdict {
        let before = VERDICTS.map(|v| self.maps.verdict(v).unwrap());
        // No socket on the queue: whatever the program thinks, the frame passes.
        assert_eq!(self.program.run(frame).unwrap(), 2, "XDP_PASS");
        let after = VERDICTS.map(|v| self.maps.verdict(v).unwrap());
        let changed: Vec<Verdict> =
            (0..VERDICTS.len()).filter(|i| after[*i] != before[*i]).map(|i| VERDICTS[i]).collect();
        assert_eq!(changed.len(), 1, "one verdict a frame");
        changed[0]
    }
}
