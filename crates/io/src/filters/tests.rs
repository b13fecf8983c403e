use super::*;
use testing::nic::Nic;

fn rule(ipv6: bool, first: u16, last: u16, queue: u32) -> Rule {
    Rule { ipv6, first, last, queue }
}

fn filters(nic: &Nic) -> Filters {
    let nic = nic.clone();
    Filters::over(Box::new(move |words| nic.call(words)))
}

/// Words of a request that are not zero.
fn set(words: &[u32; WORDS]) -> Vec<(usize, u32)> {
    words.iter().copied().enumerate().filter(|(_, word)| *word != 0).collect()
}

/// Seen of `ethtool -N lo flow-type tcp4 dst-port 33792 m 0x3ff action 3 loc 1000`, and of `tcp6` (ethtool 6.1, x86-64).
#[cfg(target_endian = "little")]
#[test]
fn a_rule_is_laid_out_as_ethtool_does() {
    let v4 = rule(false, 33_792, 34_815, 3).encode(1000);
    assert_eq!(set(&v4), [(0, 0x32), (4, 1), (7, 0x0084_0000), (25, 0x00fc_0000), (42, 3), (44, 1000)]);
    let v6 = rule(true, 33_792, 34_815, 3).encode(1000);
    assert_eq!(set(&v6), [(0, 0x32), (4, 5), (13, 0x0084_0000), (31, 0x00fc_0000), (42, 3), (44, 1000)]);
}

#[test]
fn a_rule_comes_back_as_it_was_inserted_and_others_do_not() {
    for sample in [rule(false, 0, u16::MAX, 0), rule(true, 40_000, 40_000, 7), rule(false, 49_152, 65_535, 255)] {
        let words = sample.encode(5);
        assert_eq!(Rule::decode(&words), Some(sample.clone()));
        // With optional fields that are not compared, as ixgbe tells each of its rules.
        let mut more = words;
        (more[FLOW_TYPE], more[18]) = (more[FLOW_TYPE] | 0x8000_0000, 9);
        assert_eq!(Rule::decode(&more), Some(sample));
        let at = PORT[usize::from(words[FLOW_TYPE] == TCP_V6)];
        // Another protocol, an address, a source port, a field behind the header, a context, a drop.
        for (word, value) in [(FLOW_TYPE, 2), (MASK, 1), (MASK_END - 1, 1), (FLOW_TYPE, 0x2000_0001), (COOKIE + 1, !0)]
        {
            let mut other = words;
            other[word] = value;
            assert_eq!(Rule::decode(&other), None, "word {word}");
        }
        let mut source = words;
        source[MASK + at] |= in_second_half(0).wrapping_add(u32::from_ne_bytes([1, 0, 0, 0]));
        assert_eq!(Rule::decode(&source), None);
    }
    // A mask that is no range.
    let mut words = rule(false, 33_792, 34_815, 3).encode(0);
    words[MASK + PORT[0]] = in_second_half(0xfc01);
    assert_eq!(Rule::decode(&words), None);
}

#[test]
fn a_rule_is_read_as_it_is_written() {
    let sample = rule(true, 33_792, 34_815, 3);
    assert_eq!(sample.to_string(), "tcp6 33792-34815 queue 3");
    assert_eq!(sample.to_string().parse::<Rule>().unwrap(), sample);
    assert_eq!(sample.ports(), 33_792..=34_815);
    for text in [
        "",
        "tcp4",
        "tcp4 1-1 queue",
        "udp4 1-1 queue 0",
        "tcp4 1-2 queue 0",
        "tcp4 2-1 queue 0",
        "tcp4 0-65536 queue 0",
    ] {
        assert!(text.parse::<Rule>().is_err(), "{text}");
    }
}

#[test]
fn rules_take_free_places_and_leave_others_alone() {
    let (nic, wanted) = (Nic::new(8, true), [rule(false, 32_768, 33_791, 0), rule(true, 33_792, 34_815, 1)]);
    let mut foreign = rule(false, 80, 80, 2).encode(6);
    foreign[MASK] = !0;
    nic.call(&mut foreign.clone()).unwrap();
    let mut filters = filters(&nic);
    assert_eq!((filters.are_on().unwrap(), filters.rules().unwrap()), (true, Vec::new()));
    assert!(matches!(filters.insert(&wanted), (2, None)));
    assert_eq!(filters.rules().unwrap(), [(5, wanted[1].clone()), (7, wanted[0].clone())]);
    assert_eq!(filters.remove(|rule| rule.queue == 1).unwrap(), 1);
    assert_eq!(filters.remove(|rule| wanted.contains(rule)).unwrap(), 1);
    assert_eq!(nic.rules().iter().map(|(location, _)| *location).collect::<Vec<_>>(), [6]);
}

#[test]
fn those_that_are_refused_say_why() {
    let errno = |(taken, error): (usize, Option<io::Error>)| (taken, error.and_then(|e| e.raw_os_error()));
    let rules: Vec<_> = (0..3u16).map(|n| rule(n == 2, n << 10, n << 10 | 1023, 0)).collect();
    assert_eq!(errno(filters(&Nic::new(2, true)).insert(&rules)), (2, Some(libc::ENOSPC)));
    // One that has IPv4 alone.
    assert_eq!(errno(filters(&Nic::new(9, false)).insert(&rules)), (2, Some(libc::EINVAL)));
    let mut off = Nic::new(9, true);
    off.on = false;
    assert_eq!(errno(filters(&off).insert(&rules)), (0, Some(libc::EOPNOTSUPP)));
    assert!(!filters(&off).are_on().unwrap());
    // The kernel's own answer for an interface without rules, and for none.
    let mut none = Filters::of("lo").unwrap();
    assert!(!none.are_on().unwrap());
    assert_eq!(errno(none.insert(&rules)), (0, Some(libc::EOPNOTSUPP)));
    assert_eq!(Filters::of("corelane-none").unwrap().are_on().unwrap_err().raw_os_error(), Some(libc::ENODEV));
}

#[test]
fn drivers_are_known_by_their_links_in_sys() {
    let root = std::env::temp_dir().join(format!("corelane-io-filters-{}", std::process::id()));
    for (interface, driver) in [("eth1", "mlx5_core"), ("eth2", "macb")] {
        let device = root.join("sys/class/net").join(interface).join("device");
        std::fs::create_dir_all(&device).unwrap();
        std::os::unix::fs::symlink(Path::new("../../../bus/pci/drivers").join(driver), device.join("driver")).unwrap();
    }
    let known = ["eth1", "eth2", "eth3"].map(|interface| take_ranges(&root, interface));
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(known, [true, false, false]);
}
