use runtime::{Device, Model};

use super::old::Old;
use super::*;

fn parse(text: &str) -> File {
    Old::parse("a.conf", text).map_err(|f| f.message).unwrap()
}

fn settings(file: &File, set: Sizes) -> (Config, Sizes) {
    let settings = file.settings(set).unwrap();
    (settings.config, settings.sizes)
}

fn refused(text: &str) -> String {
    Old::parse("a.conf", text).map(|_| ()).unwrap_err().message
}

/// The files that come with mTCP, in all their spellings.
#[test]
fn an_old_file_is_read_as_mtcp_reads_it() {
    let text = "# comment\nio = dpdk\nnum_cores\t2\ncore_mask = 0x35\nnum_mem_ch=4\nport = eth0 eth1 # two\nrcvbuf = 16384\n\
                tcp_timeout = 30\ntcp_timewait = 0\nmax_concurrency   20000\nmultiprocess = 0\ncc = reno\nstat_print = eth0\n";
    let (config, sizes) = settings(&parse(text), Sizes::NOTHING);
    assert_eq!((sizes.num_cores, sizes.max_concurrency, sizes.max_num_buffers), (2, 20_000, 16_384));
    assert_eq!((sizes.rcvbuf_size, sizes.sndbuf_size), (65_536, 262_144));
    assert_eq!((sizes.tcp_timewait, sizes.tcp_timeout), (0, 30_000));
    assert_eq!((config.lanes, &config.cores[..], config.model), (2, &[0, 2][..], Model::Guarded));
    let devices: Vec<_> = config.ports.iter().map(|p| p.device.to_string()).collect();
    assert_eq!(devices, ["xdp:eth0", "xdp:eth1"]);
    let tcp = config.tcp.parameters();
    assert_eq!((tcp.congestion.name(), tcp.receive_buffer, config.tcp.time_wait_ms), ("reno", 65_536, Some(0)));
    assert_eq!((tcp.keep_idle.as_secs(), tcp.keep_interval.as_secs(), tcp.keep_count), (30, 6, 5));
}

#[test]
fn our_own_ports_are_named_too() {
    let device = |text: &str| settings(&parse(text), Sizes::NOTHING).0.ports[0].device.clone();
    assert_eq!(device("io = tap\nport = t0\naddress = 10.9.0.2/24"), Device::Tap("t0".into()));
    assert_eq!(device("port = packet:eth0"), Device::Packet("eth0".into()));
    assert_eq!(device("port = eth0"), Device::Xdp("eth0".into()));
    let (config, _) = settings(&parse("port tap:a tap:b\naddress 10.0.0.1/24 fd00::1/64\n"), Sizes::NOTHING);
    assert_eq!(config.ports.iter().map(|p| p.addresses.len()).collect::<Vec<_>>(), [0, 2]);
}

/// Large buffers make larger ones, and more memory; small ones make nothing smaller.
#[test]
fn sizes_are_the_least() {
    let file = parse("port = eth0\nrcvbuf = 1048576\nsndbuf = 2048\nmax_num_buffers = 2000\n");
    let (config, _) = settings(&file, Sizes::NOTHING);
    let tcp = config.tcp.parameters();
    assert_eq!((tcp.receive_buffer, tcp.send_buffer, config.buffers_mib), (1 << 20, 262_144, 2004));
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
        ("# nothing\n", "a.conf: names no port, "),
        ("", "a.conf: names no port, "),
        ("port = eth0\nlocal_ports = 5000\n", "a.conf:2: local_ports: expected the first and the last, as "),
        ("port = eth0\nlocal_ports = 5000 4000\n", "a.conf:2: local_ports is 5000 4000: expected the first, "),
        ("port = eth0\nlocal_ports = 0 70000\n", "a.conf:2: local_ports is 0: expected a number from 1 to 65535"),
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
    let file = parse("port = eth0\ncore_mask = 3\nnum_cores = 4\n");
    let refused = file.settings(Sizes::NOTHING).err().unwrap();
    assert_eq!(refused, "core_mask names 2 cores for 4 lanes (num_cores)");
}

#[test]
fn toml_is_known_by_its_name_or_by_its_look() {
    assert!(
        is_toml("a.toml", "lanes = 1\n")
            && is_toml("a.conf", "# x\n [[ports]]\n")
            && !is_toml("a.conf", "port = eth0\n")
    );
    let read = |text: &str| toml("a.toml", text).map_err(|f| f.message);
    let file = read("lanes = 3\nmax_sockets = 77\n[[ports]]\ndevice = \"tap:t0\"\n").unwrap();
    let (config, sizes) = settings(&file, Sizes::NOTHING);
    assert_eq!((sizes.num_cores, sizes.max_concurrency, sizes.rcvbuf_size), (3, 77, 65_536));
    assert_eq!((config.lanes, config.model), (3, Model::Guarded));
    // What a program sets goes before the file.
    assert_eq!(settings(&file, Sizes { num_cores: 1, ..Sizes::NOTHING }).0.lanes, 1);
    let file = read("model = \"paired\"\n[[ports]]\ndevice = \"tap:t0\"\n").unwrap();
    let (config, sizes) = settings(&file, Sizes::NOTHING);
    assert_eq!((config.model, sizes.max_concurrency), (Model::Paired, 10_000));
    assert!(read("[[ports]]\nlanez = 1\n").err().unwrap().starts_with("a.toml:2:1: unknown field"));
}

/// Asks for what is told with some changes, as programs do; what holds then.
fn changed(file: &File, asked: &mut Asked, change: impl FnOnce(&mut Sizes)) -> Settings {
    let mut sizes = file.sizes(asked.set());
    asked.tell(sizes);
    change(&mut sizes);
    asked.give(sizes);
    file.settings(asked.set()).unwrap()
}

/// Whatever the form of the file, and whichever the number.
#[test]
fn what_is_set_holds_and_the_rest_stays() {
    let old = parse("io = tap\nport = t0\ntcp_timewait = 0\n");
    let new = toml("a.toml", "lanes = 3\n[tcp]\nreceive_buffer = 4096\n[[ports]]\ndevice = \"tap:t0\"\n").ok().unwrap();
    for (file, receive, wait, mib) in [(old, 65_536, 0, 1563), (new, 4096, 60_000, 1172)] {
        let mut asked = Asked::NOTHING;
        let at_first = file.settings(asked.set()).unwrap();
        // Given back as it was told it changes nothing, nor does anything else.
        let same = changed(&file, &mut asked, |_| {});
        assert_eq!((asked.set(), same.sizes, same.keepalive), (Sizes::NOTHING, at_first.sizes, false));
        assert_eq!((same.sizes.rcvbuf_size, same.sizes.tcp_timewait, same.sizes.tcp_timeout), (receive, wait, -1));
        let now = changed(&file, &mut asked, |c| c.max_num_buffers = 100_000);
        assert_eq!((now.sizes.max_num_buffers / 100, now.config.buffers_mib), (1000, mib));
        let now = changed(&file, &mut asked, |c| {
            (c.rcvbuf_size, c.sndbuf_size, c.tcp_timewait) = (300_000, 700_000, 7000);
            c.num_cores = 5;
        });
        let tcp = now.config.tcp.parameters();
        assert_eq!((tcp.receive_buffer, tcp.send_buffer, now.config.tcp.time_wait_ms), (300_000, 700_000, Some(7000)));
        assert_eq!((now.sizes.rcvbuf_size, now.sizes.sndbuf_size, now.sizes.tcp_timewait), (300_000, 700_000, 7000));
        assert_eq!((now.config.lanes, now.sizes.num_cores, now.sizes.max_concurrency), (5, 5, 10_000));
        assert_eq!((now.keepalive, now.config.tcp.keep_idle_s), (false, None));
        // Whole seconds are what there is.
        let now = changed(&file, &mut asked, |c| c.tcp_timeout = 5500);
        assert_eq!((now.keepalive, now.config.tcp.keep_idle_s, now.sizes.tcp_timeout), (true, Some(5), 5000));
        assert_eq!((now.sizes.rcvbuf_size, now.sizes.num_cores), (300_000, 5));
        // What cannot be is as near as it can.
        let most = c_int::MAX;
        let now = changed(&file, &mut asked, |c| (c.rcvbuf_size, c.tcp_timewait, c.tcp_timeout) = (most, most, most));
        assert_eq!(
            (now.sizes.rcvbuf_size, now.sizes.tcp_timewait, now.sizes.tcp_timeout),
            (1 << 30, 600_000, 32_767_000)
        );
    }
}

/// A file goes before what was set earlier, where it names it.
#[test]
fn what_a_file_names_goes_before() {
    let set =
        Sizes { max_concurrency: 7, tcp_timewait: 9000, tcp_timeout: 9000, rcvbuf_size: 100_000, ..Sizes::NOTHING };
    let file = parse("port = eth0\nmax_concurrency = 20\ntcp_timewait = 0\ntcp_timeout = -1\n");
    let (_, sizes) = settings(&file, set.but_for(&file));
    assert_eq!((sizes.max_concurrency, sizes.rcvbuf_size), (20, 100_000));
    assert_eq!((sizes.tcp_timewait, sizes.tcp_timeout), (0, -1));
}

/// A refusal lists all keys that are read, and the documents do.
#[test]
fn the_keys_are_listed_whole() {
    for key in old::KEYS {
        let read = Old::parse("a.conf", &format!("{key} = ?\n")).map(|_| ());
        assert!(read.is_ok() || !read.unwrap_err().message.contains("unknown key"), "{key}");
    }
    let said = refused("max_conns = 3\n");
    for key in old::KEYS {
        assert!(said.contains(key), "{key}: {said}");
    }
    let documents = include_str!("../../../../docs/mtcp.md");
    let rows: Vec<&str> = documents.lines().filter_map(|line| line.strip_prefix("| `")).collect();
    for key in old::KEYS {
        assert!(rows.iter().any(|row| row.split(" | ").next().unwrap().contains(key)), "{key} is in no row");
    }
}

#[test]
fn a_file_of_anything_is_refused_in_one_short_line() {
    let noise = "\u{1b}]0;title\u{7}".repeat(10_000) + " = 1";
    let said = refused(&noise);
    assert!(said.starts_with("a.conf:1: unknown key ") && said.chars().count() <= LONGEST + 1, "{}", said.len());
}

#[test]
fn ports_of_connections_can_be_named() {
    let (config, _) = settings(&parse("port = eth0\nlocal_ports = 4096 32767\n"), Sizes::NOTHING);
    assert_eq!(config.local_ports, Some((4096, 32_767)));
}

/// Buffers that begin larger than was asked for, and what the engine's messages name, in the words of the file.
#[test]
fn what_is_not_as_it_was_asked_for_is_told() {
    let file = parse("port = eth0\nrcvbuf = 8192\nsndbuf = 300000\n");
    assert_eq!(file.notes, ["a.conf:2: rcvbuf is 8192: it begins with 65536, and takes memory only for what is in it"]);
    // The messages themselves, of engines that cannot start.
    let config = |device: &str| Config { ports: vec![PortConfig::new(device.parse().unwrap())], ..Config::default() };
    let start = |config: &Config| runtime::Engine::start(config).map(|_| ()).unwrap_err().to_string();
    let messages = [
        start(&Config { cores: vec![1023], ..config("tap:none") }),
        start(&config("packet:lo")),
        start(&Config::default()),
    ];
    for words in [old::WORDS, Words::TOML] {
        for message in &messages {
            let said = words.put(message);
            assert!(message.contains("--") && !said.contains("--"), "{said}");
        }
    }
    assert!(old::WORDS.put(&messages[0]).ends_with(" (core_mask)"), "{messages:?}");
}
