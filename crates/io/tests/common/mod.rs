//! The sharing program over single frames (BPF_PROG_TEST_RUN).
// Not every test uses all of it.
#![allow(dead_code)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use io::bpf::{Asm, If, KernelFunction, Map, MapKind, Maps, Program, Size, VERDICTS, Verdict, stand_in, steer_for};

/// Queues of the program's device.
pub const QUEUES: u32 = 4;

/// The program and its maps.
pub struct Bench {
    pub maps: Maps,
    program: Program,
    /// What is beside the next frame, if this is the program that knows of that: whether anything is, and the tag.
    beside: Option<Map>,
    /// The counters as they were last read.
    counted: Mutex<[u64; VERDICTS.len()]>,
    /// Those of [`Bench::listen`].
    sockets: Vec<OwnedFd>,
}

/// How a program is made.
pub struct Setting {
    /// How long what follows a first fragment is its connection's.
    pub fragment_life: Duration,
    /// How many first fragments are remembered.
    pub remembered: u32,
    /// Whether tags may be beside frames.
    pub beside: bool,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting { fragment_life: Duration::from_secs(30), remembered: 4096, beside: false }
    }
}

/// A tag beside a frame: its type, and its text.
pub type Tag = (u16, u16);

/// What the program makes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Pass,
    /// It goes to the socket of its queue.
    Redirect,
}

impl Bench {
    /// `None` where this user may not load a program: then the test is skipped.
    pub fn new() -> Option<Bench> {
        Bench::with(Setting::default())
    }

    /// The same made otherwise.
    pub fn with(setting: Setting) -> Option<Bench> {
        let maps = match Maps::remembering(QUEUES, setting.remembered) {
            Ok(maps) => maps,
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                testing::skip(format_args!("needs CAP_BPF and CAP_NET_ADMIN ({e})"));
                return None;
            }
            Err(e) => panic!("maps: {e}"),
        };
        let (insns, beside) = match setting.beside {
            true => {
                let beside = Map::new(MapKind::Array, "cl_test_beside", 4, 8, 1).unwrap();
                let insns = steer_for(&maps, Some(KernelFunction::NONE), setting.fragment_life);
                (stand_in(insns, reads_tag(&beside)), Some(beside))
            }
            false => (steer_for(&maps, None, setting.fragment_life), None),
        };
        let program = Program::load_xdp("corelane", &insns, true).expect("the verifier accepts the program");
        Some(Bench { maps, program, beside, counted: Mutex::default(), sockets: Vec::new() })
    }

    /// Puts a socket on a queue.
    pub fn listen(&mut self, queue: u32) {
        const XDP_RX_RING: i32 = 2;
        // SAFETY: a plain system call that gives a new descriptor.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "an AF_XDP socket: {}", std::io::Error::last_os_error());
        // SAFETY: new, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        option(&socket, libc::SOL_XDP, XDP_RX_RING, 64);
        self.maps.sockets.set(&queue.to_ne_bytes(), &fd.to_ne_bytes()).unwrap();
        self.sockets.push(socket);
    }

    /// What the program says of a frame.
    pub fn verdict(&self, frame: &[u8]) -> Verdict {
        let (verdict, action, _) = self.run(frame, (0, 0), None);
        // No socket on the queue: whatever the program thinks, the frame passes.
        assert_eq!(action, Action::Pass);
        verdict
    }

    /// What the program says of a frame of a queue of an interface (0: `lo`), with what is beside it; what it does with it, and the
    /// frame as it has left it.
    pub fn run(&self, frame: &[u8], (ifindex, queue): (u32, u32), tag: Option<Tag>) -> (Verdict, Action, Vec<u8>) {
        if let Some(beside) = &self.beside {
            let (ethertype, text) = tag.unwrap_or_default();
            let words = [(tag.is_some() as u16).to_ne_bytes(), ethertype.to_be_bytes(), text.to_ne_bytes(), [0; 2]];
            beside.set(&0u32.to_ne_bytes(), &words.concat()).unwrap();
        } else {
            assert_eq!(tag, None, "this program does not look beside frames");
        }
        let (action, left) = self.program.run_on(ifindex, queue, frame).unwrap();
        let action = match action {
            2 => Action::Pass,
            4 => Action::Redirect,
            _ => panic!("action {action} of frame {frame:02x?}"),
        };
        let after = VERDICTS.map(|v| self.maps.verdict(v).unwrap());
        let before = std::mem::replace(&mut *self.counted.lock().unwrap(), after);
        let changed: Vec<Verdict> =
            (0..VERDICTS.len()).filter(|i| after[*i] != before[*i]).map(|i| VERDICTS[i]).collect();
        assert_eq!(changed.len(), 1, "one verdict a frame");
        (changed[0], action, left)
    }
}

/// What stands in for the kernel's function [`io::bpf::TAGS_BESIDE`]. Only a program that is loaded for one interface may call that, and
/// such a one the kernel does not run over frames of ours (BPF_PROG_TEST_RUN is EINVAL); there is no tag of ours beside them either.
/// The function itself is under test where a veth's frames have tags beside them.
fn reads_tag(beside: &Map) -> Vec<io::bpf::Insn> {
    let mut a = Asm::default();
    // The arguments: the context, where the type goes, where the text goes.
    a.map_value(1, beside.as_fd()).load(Size::H, 4, 1, 0).jump_if(If::Eq, 4, 0, "none");
    a.load(Size::H, 4, 1, 2).store(Size::H, 2, 0, 4).load(Size::H, 4, 1, 4).store(Size::H, 3, 0, 4).mov(0, 0).exit();
    a.label("none").mov(0, -libc::ENODATA).exit();
    a.finish()
}

/// Runs `f` in a network namespace of its own, whose loopback is up.
pub fn in_a_namespace(f: impl FnOnce() + Send) {
    let run = || {
        // SAFETY: it changes this thread alone, which ends with `f`.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", std::io::Error::last_os_error());
        ip("link set lo up");
        f();
    };
    if let Err(cause) = std::thread::scope(|s| s.spawn(run).join()) {
        std::panic::resume_unwind(cause);
    }
}

/// Keeps this thread on the core that it runs on.
pub fn stay_on_this_core() {
    let mut core = rustix::thread::CpuSet::new();
    core.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &core).unwrap();
}

/// Runs commands of ip(8), one a line.
pub fn ip(commands: &str) {
    use std::io::Write;
    let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("ip(8)");
    ip.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success(), "ip: {commands}");
}

/// Sets how the namespace's listeners use SYN cookies: 0 never, 1 under a flood, 2 always.
pub fn syn_cookies(when: u8) {
    std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", when.to_string()).unwrap();
}

pub fn option(socket: &impl AsRawFd, level: i32, name: i32, value: i32) {
    let size = size_of::<i32>() as u32;
    // SAFETY: the value is an int, and lives.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Next sequence numbers of a connection, to send and to receive; it ends without a word when it is dropped.
pub fn sequences(socket: &impl AsRawFd) -> (u32, u32) {
    option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1);
    let [receive, send] = [1, 2].map(|queue| {
        option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue);
        let (mut value, mut size) = (0u32, size_of::<u32>() as u32);
        // SAFETY: the option is an unsigned int, for which there is room.
        let done = unsafe {
            let (to, size) = ((&raw mut value).cast(), &raw mut size);
            libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, to, size)
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        value
    });
    (send, receive)
}
