use runtime::{Device, Model};

use super::old::Old;
use super::*;

fn parse(text: &str) -> (Old, Sizes) {
    let (old, sizes) = Old::parse("a.conf", text, Sizes::DEFAULT).map_err(|f| f.message).unwrap();
    (old, sizes.with_cores())
}

fn refused(text: &str) -> String {
    Old::parse("a.conf", text, Sizes::DEFAULT).map(|_| ()).unwrap_err().message
}

/// The files that come with mTCP, in all their spellings.
#[test]
fn an_old_file_is_read_as_mtcp_reads_it() {
    let text = "# comment\nio = dpdk\nnum_cores\t2\ncore_mask = 0x35\nnum_mem_ch=4\nport = eth0 eth1 # two\nrcvbuf = 16384\n\
                tcp_timeout = 30\ntcp_timewait = 0\nmax_concurrency   20000\nmultiprocess = 0\ncc = reno\nstat_print = eth0\n";
    let (old, sizes) = parse(text);
    assert_eq!((sizes.num_cores, sizes.max_concurrency, sizes.max_num_buffers), (2, 20_000, 10_000));
    assert_eq!((sizes.rcvbuf_size, sizes.sndbuf_size), (16_384, 16_384));
    assert_eq!((sizes.tcp_timewait, sizes.tcp_timeout), (0, 30_000));
    let config = File::Old(old).config(sizes).unwrap();
    assert_eq!((config.lanes, &config.cores[..], config.model), (2, &[0, 2][..], Model::Guarded));
    let devices: Vec<_> = config.ports.iter().map(|p| p.device.to_string()).collect();
    assert_eq!(devices, ["xdp:eth0", "xdp:eth1"]);
    let tcp = config.tcp.parameters();
    assert_eq!((tcp.congestion.name(), tcp.receive_buffer, config.tcp.time_wait_ms), ("reno", 65_536, Some(0)));
    assert_eq!((tcp.keep_idle.as_secs(), tcp.keep_interval.as_secs(), tcp.keep_count), (30, 6, 5));
}

#[test]
fn our_own_ports_are_named_too() {
    let device = |text: &str| File::Old(parse(text).0).config(parse(text).1).unwrap().ports[0].device.clone();
    assert_eq!(device("io = tap\nport = t0\naddress = 10.9.0.2/24"), Device::Tap("t0".into()));
    assert_eq!(device("port = packet:eth0"), Device::Packet("eth0".into()));
    assert_eq!(device("port = eth0"), Device::Xdp("eth0".into()));
    let (old, sizes) = parse("port tap:a tap:b\naddress 10.0.0.1/24 fd00::1/64\n");
    let config = File::Old(old).config(sizes).unwrap();
    assert_eq!(config.ports.iter().map(|p| p.addresses.len()).collect::<Vec<_>>(), [0, 2]);
}

/// Large buffers make larger ones, and more memory; small ones make nothing smaller.
#[test]
fn sizes_are_the_least() {
    let (old, sizes) = parse("port = eth0\nrcvbuf = 1048576\nsndbuf = 2048\nmax_num_buffers = 2000\n");
    let config = File::Old(old).config(sizes).unwrap();
    let tcp = config.tcp.parameters();
    assert_eq!((tcp.receive_buffer, tcp.send_buffer, config.buffers_mib), (1 << 20, 262_144, 2003));
    assert_eq!(config.tcp.keep_idle_s, None);
}

#[test]
fn what_is_wrong_is_named_by_file_and_line() {
    for (text, said) in [
        ("port = eth0\n\nmax_conns = 3\n", "a.conf:3: unknown key max_conns: expected io, port, "),
        ("num_cores = two\n", "a.conf:1: num_cores is two: expected a number from 1 to 128"),
        ("num_cores = 0\n", "a.conf:1: num_cores is 0: "),
        ("num_cores = 1 2\n", "a.conf:1: num_cores is 1 2: expected one value"),
        ("io = dpdk xdp\n", "a.conf:1: io is dpdk xdp: expected one value"),
        ("rcvbuf = 63\n", "a.conf:1: rcvbuf is 63: "),
        ("tcp_timeout = 99999999999\n", "a.conf:1: tcp_timeout is 99999999999: "),
        ("io = ixgbe\n", "a.conf:1: io is ixgbe: expected xdp, packet or tap"),
        ("port\n", "a.conf:1: port: expected a value"),
        ("# nothing\n", "a.conf:1: no port: "),
        ("", "a.conf:1: no port: "),
        ("port = a/b\n", "a.conf:1: port: device \"xdp:a/b\": expected"),
        ("port = eth0\naddress = 10.0.0.1\n", "a.conf:2: address \"10.0.0.1\": expected ADDRESS/PREFIX"),
        ("address = 10.0.0.1/24\n", "a.conf:1: address: expected after the port"),
        ("core_mask = xyz\n", "a.conf:1: core_mask is xyz: "),
        ("core_mask = 0\n", "a.conf:1: core_mask is 0: "),
        ("cc = vegas\n", "a.conf:1: cc is vegas: expected cubic or reno"),
    ] {
        let message = refused(text);
        assert!(message.starts_with(said), "{text:?}: {message}");
    }
}

#[test]
fn more_lanes_than_named_cores_are_refused() {
    let (old, sizes) = parse("port = eth0\ncore_mask = 3\nnum_cores = 4\n");
    assert_eq!(File::Old(old).config(sizes).unwrap_err(), "core_mask names 2 cores for 4 lanes (num_cores)");
}

#[test]
fn toml_is_known_by_its_name_or_by_its_look() {
    assert!(
        is_toml("a.toml", "lanes = 1\n")
            && is_toml("a.conf", "# x\n [[ports]]\n")
            && !is_toml("a.conf", "port = eth0\n")
    );
    let read = |text: &str| {
        let (file, sizes) = toml("a.toml", text, Sizes::DEFAULT).map_err(|f| f.message)?;
        Ok::<_, String>((file, sizes.with_cores()))
    };
    let (file, sizes) = read("lanes = 3\nmax_sockets = 77\n[[ports]]\ndevice = \"tap:t0\"\n").unwrap();
    assert_eq!((sizes.num_cores, sizes.max_concurrency, sizes.rcvbuf_size), (3, 77, 65_536));
    let config = file.config(sizes).unwrap();
    assert_eq!((config.lanes, config.model), (3, Model::Guarded));
    // What a program sets goes before the file.
    let config = file.config(sizes.updated(Sizes { num_cores: 1, ..sizes })).unwrap();
    assert_eq!(config.lanes, 1);
    let (file, sizes) = read("model = \"paired\"\n[[ports]]\ndevice = \"tap:t0\"\n").unwrap();
    assert_eq!((file.config(sizes).unwrap().model, sizes.max_concurrency), (Model::Paired, 10_000));
    assert!(read("[[ports]]\nlanez = 1\n").err().unwrap().starts_with("a.toml:2:1: unknown field"));
}

#[test]
fn numbers_above_zero_are_taken() {
    let sizes = Sizes::DEFAULT.updated(Sizes { max_concurrency: 5, num_cores: -3, ..Sizes::DEFAULT.nothing() });
    assert_eq!(sizes, Sizes { max_concurrency: 5, ..Sizes::DEFAULT });
}
