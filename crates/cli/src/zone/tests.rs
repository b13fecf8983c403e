use super::*;
use ::io::filters::{Filters, Rule};
use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use testing::nic::Nic;

thread_local! {
    /// NIC of eth1, where it has rules: of this test.
    static NIC: RefCell<Option<Nic>> = const { RefCell::new(None) };
}

/// Receive rules of the test's NIC.
fn filters(interface: &str) -> io::Result<Filters> {
    assert_eq!(interface, "eth1");
    let nic = NIC.with_borrow(Clone::clone).ok_or(io::ErrorKind::NotConnected)?;
    Ok(Filters::over(Box::new(move |words| nic.call(words))))
}

/// A folder with the files that /sys and /proc have of an interface.
struct Folders(Machine);

impl Folders {
    /// Interface eth1, number 3: queues of each direction, interrupts by number and handler.
    fn new(receive: &[&str], transmit: &[&str], interrupts: &[(u32, &str, &str)]) -> Folders {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("corelane-cli-zone-{}-{number}", std::process::id()));
        let machine = Folders(Machine::made(root, 40, filters));
        machine.make("sys/class/net/eth1/ifindex", "3");
        for (of, file, masks) in [("rx", "rps_cpus", receive), ("tx", "xps_cpus", transmit)] {
            for (number, mask) in masks.iter().enumerate() {
                machine.make(&format!("sys/class/net/eth1/queues/{of}-{number}/{file}"), mask);
            }
        }
        for (number, handler, mask) in interrupts {
            machine.make(&format!("sys/class/net/eth1/device/msi_irqs/{number}"), "msix");
            machine.make(&format!("proc/irq/{number}/smp_affinity"), mask);
            machine.make(&format!("proc/irq/{number}/affinity_hint"), "0");
            fs::create_dir(machine.path(&format!("proc/irq/{number}/{handler}"))).unwrap();
        }
        machine
    }

    /// Two queues with interrupts, on a machine that spreads all over four cores.
    fn with_two_queues() -> Folders {
        let interrupts = [(30, "eth1", "f"), (31, "eth1-TxRx-0", "f"), (32, "eth1-TxRx-1", "f")];
        Folders::new(&["f", "0"], &["3", "c"], &interrupts)
    }

    /// Gives eth1 a driver, and a NIC behind it.
    fn drive(self, driver: &str, nic: Nic) -> Folders {
        self.make(&format!("sys/bus/pci/drivers/{driver}/bind"), "");
        let link = self.path("sys/class/net/eth1/device/driver");
        std::os::unix::fs::symlink(self.path(&format!("sys/bus/pci/drivers/{driver}")), link).unwrap();
        NIC.set(Some(nic));
        self
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.root().join(file)
    }

    fn make(&self, file: &str, text: &str) {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        fs::write(self.path(file), format!("{text}\n")).unwrap();
    }

    /// All masks: of interrupts, receive queues and transmit queues.
    fn masks(&self) -> String {
        let folders = [("proc/irq", "smp_affinity"), ("sys/class/net/eth1/queues", "rps_cpus")];
        let mut lines = Vec::new();
        for (folder, file) in folders.into_iter().chain([("sys/class/net/eth1/queues", "xps_cpus")]) {
            let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
            let mut paths: Vec<_> =
                entries.map(|entry| entry.path().join(file)).filter(|path| path.is_file()).collect();
            paths.sort();
            lines.extend(paths.iter().map(|path| fs::read_to_string(path).unwrap().trim().to_owned()));
        }
        lines.join(" ")
    }

    fn enter(&self, cores: &[u32], delivered: bool) -> (Option<Zone>, Vec<String>) {
        let blocks = Blocks::deal((32_768, 60_999), cores, 0, true);
        Zone::enter(&self.0, ("eth1", 3), cores, delivered.then_some(&blocks), 7)
    }

    fn undo_left(&self) -> Vec<(String, u32, End)> {
        let all = undo_left(&self.0).unwrap();
        all.into_iter().map(|found| (found.interface, found.program, found.end)).collect()
    }

    fn records(&self) -> usize {
        fs::read_dir(self.0.records(FOLDER)).map_or(0, Iterator::count)
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.root());
    }
}

/// Ends as a process does that is killed: its lock goes, and nothing is undone.
fn kill(mut zone: Zone) {
    drop(zone.record.take());
}

#[test]
fn queues_are_set_to_cores_and_back() {
    let machine = Folders::with_two_queues();
    let before = machine.masks();
    let (zone, notes) = machine.enter(&[1, 2], true);
    let zone = zone.unwrap();
    // An interrupt that is no queue's is left alone, and so are cores of others.
    assert_eq!((machine.masks().as_str(), notes.len()), ("f 2 4 0 0 3 c", 0), "from {before}");
    assert_eq!((zone.interface(), zone.settings(), machine.records()), ("eth1", 3, 1));
    assert_eq!(zone.leave(), Vec::<String>::new());
    assert_eq!((machine.masks(), machine.records()), (before.clone(), 0));

    drop(machine.enter(&[3, 0], true).0.unwrap());
    assert_eq!((machine.masks(), machine.records()), (before, 0));
}

#[test]
fn each_core_has_one_transmit_queue() {
    let machine = Folders::new(&["0", "0"], &["1", "0"], &[]);
    let _zone = machine.enter(&[0, 1, 2], true).0;
    assert_eq!(machine.masks(), "0 0 5 2");
    let machine = Folders::new(&["0", "0", "0"], &["9", "2", "0"], &[]);
    let _zone = machine.enter(&[1, 0], true).0;
    assert_eq!(machine.masks(), "0 0 0 a 1 0");
    // The file of a single queue takes none.
    let machine = Folders::new(&["0"], &["0"], &[]);
    assert_eq!(machine.enter(&[1], true).0.unwrap().settings(), 0);
}

#[test]
fn receive_queues_are_spread_where_cores_lack_one_and_nothing_delivers() {
    let masks = |queues: &[&str], cores: &[u32], delivered| {
        let machine = Folders::new(queues, &[], &[(9, "virtio0-input.0", "1")]);
        let _zone = machine.enter(cores, delivered).0;
        machine.masks()[2..].to_owned()
    };
    assert_eq!(masks(&["0"], &[0, 1], false), "3");
    assert_eq!(masks(&["0", "0"], &[0, 1, 2], false), "5 2");
    assert_eq!(masks(&["3", "3"], &[0, 1], false), "0 0");
    assert_eq!(masks(&["3"], &[0, 1], true), "0");
    assert_eq!(masks(&["3", "3"], &[0, 1], true), "0 0");
}

#[test]
fn interrupts_are_known_by_their_handlers() {
    let set = |handler: &str| {
        let machine = Folders::new(&["0"; 4], &[], &[(9, handler, "f")]);
        let (zone, notes) = machine.enter(&[0, 1, 2, 3], true);
        let masks = machine.masks();
        drop(zone);
        (masks.strip_suffix(" 0 0 0 0").unwrap().to_owned(), notes)
    };
    for handler in [
        "eth0-TxRx-3",
        "ens3f0-rx-3",
        "eth0-Tx-Rx-3",
        "i40e-enp1s0-TxRx-3",
        "virtio2-output.3",
        "mlx5_comp3@pci:0000:01:00.0",
        "gve-ntfy-blk3@pci:0000:00:04.0",
        "mana_q3@pci:7870:00:00.0",
        "hns3-0000:7d:00.0-TxRx-3",
        "eth0-rxtx-7",
    ] {
        assert_eq!(set(handler), ("8".into(), Vec::new()), "{handler}");
    }
    for handler in
        ["eth3", "ens3f3", "virtio0-config", "mlx5_async3@pci:0000:01:00.0", "ena-mgmnt@pci:0000:00:05.0", "7"]
    {
        let (masks, notes) = set(handler);
        assert_eq!(masks, "f", "{handler}");
        assert!(notes[0].starts_with("interrupts of eth1 do not name their queues"), "{notes:?}");
    }
    // A virtio device's are its parent's.
    let machine = Folders::new(&[], &[], &[]);
    machine.make("sys/class/net/pci/msi_irqs/9", "msix");
    machine.make("proc/irq/9/smp_affinity", "f");
    machine.make("proc/irq/9/virtio0-input.0/x", "");
    fs::create_dir(machine.path("sys/class/net/pci/virtio0")).unwrap();
    std::os::unix::fs::symlink("../pci/virtio0", machine.path("sys/class/net/eth1/device")).unwrap();
    let _zone = machine.enter(&[1], true).0;
    assert_eq!(machine.masks(), "2");
}

#[test]
fn settings_of_a_killed_process_are_undone_later() {
    let machine = Folders::with_two_queues();
    let before = machine.masks();
    kill(machine.enter(&[1, 2], true).0.unwrap());
    assert_eq!((machine.masks().as_str(), machine.records()), ("f 2 4 0 0 3 c", 1));
    let undone = Undone { undone: 3, ..Undone::default() };
    assert_eq!(machine.undo_left(), [("eth1".into(), 7, End::Undone(undone))]);
    assert_eq!((machine.masks(), machine.records(), machine.undo_left()), (before, 0, Vec::new()));
}

#[test]
fn undoing_leaves_what_is_another_by_now() {
    let machine = Folders::with_two_queues();
    kill(machine.enter(&[1, 2], true).0.unwrap());
    // An administrator's mask, an interrupt's number that another device has, and one that is as before.
    machine.make("proc/irq/31/smp_affinity", "8");
    fs::remove_dir(machine.path("proc/irq/32/eth1-TxRx-1")).unwrap();
    machine.make("sys/class/net/eth1/queues/rx-0/rps_cpus", "00000000,0000000f");
    let undone = Undone { changed: 1, gone: 1, ..Undone::default() };
    assert_eq!(machine.undo_left(), [("eth1".into(), 7, End::Undone(undone))]);
    assert_eq!(machine.masks(), "f 8 4 00000000,0000000f 0 3 c");

    // Another interface of that name: its queues are not ours, interrupts are.
    let machine = Folders::with_two_queues();
    kill(machine.enter(&[1, 2], true).0.unwrap());
    machine.make("sys/class/net/eth1/ifindex", "4");
    let undone = Undone { undone: 2, gone: 1, ..Undone::default() };
    assert_eq!(machine.undo_left(), [("eth1".into(), 7, End::Undone(undone))]);
    assert_eq!(machine.masks(), "f f f 0 0 3 c");
}

#[test]
fn settings_are_a_living_processs_own() {
    let machine = Folders::with_two_queues();
    let (zone, _) = machine.enter(&[1, 2], true);
    let set = machine.masks();
    assert_eq!(machine.undo_left(), [("eth1".into(), 7, End::Held)]);
    let (second, notes) = machine.enter(&[0, 1], true);
    assert!(second.is_none());
    assert_eq!(notes, ["queues of eth1 stay as they are: another corelane run (pid 7) has set them"]);
    assert_eq!(machine.masks(), set);
    drop(zone);
}

#[test]
fn records_of_other_network_namespaces_wait_for_them() {
    let mut machine = Folders::with_two_queues();
    kill(machine.enter(&[1, 2], true).0.unwrap());
    let set = machine.masks();
    machine.0 = Machine::made(machine.0.root().into(), 41, filters);
    // A process in the namespace 40.
    machine.make("proc/12/ns/x", "");
    let link = |to: &Path| std::os::unix::fs::symlink(to, machine.path("proc/12/ns/net")).unwrap();
    let namespace = machine.path("namespace");
    fs::write(&namespace, "").unwrap();
    let number = fs::metadata(&namespace).unwrap().ino();
    link(&namespace);
    let old = record::path(&machine.0.records(FOLDER), 40, 3);
    let text = fs::read_to_string(&old).unwrap().replace("\"namespace\":40", &format!("\"namespace\":{number}"));
    fs::write(&old, text).unwrap();
    assert_eq!(machine.undo_left(), [("eth1".into(), 7, End::Elsewhere(number))]);
    assert_eq!((machine.masks(), machine.records()), (set, 1));
    // That namespace has gone, and the interface is here.
    fs::remove_file(machine.path("proc/12/ns/net")).unwrap();
    let undone = Undone { undone: 2, gone: 1, ..Undone::default() };
    assert_eq!(machine.undo_left(), [("eth1".into(), 7, End::Undone(undone))]);
    assert_eq!((machine.masks().as_str(), machine.records()), ("f f f 0 0 3 c", 0));
}

#[test]
fn failures_are_told_and_kept() {
    use std::os::unix::fs::PermissionsExt;
    // A folder that others may write to: what they leave there is not believed.
    let machine = Folders::with_two_queues();
    fs::create_dir_all(machine.0.records(FOLDER)).unwrap();
    fs::set_permissions(machine.0.records(FOLDER), fs::Permissions::from_mode(0o777)).unwrap();
    let before = machine.masks();
    let (zone, notes) = machine.enter(&[1, 2], true);
    assert!(zone.is_none() && notes[0].ends_with("zones: others may write to it"), "{notes:?}");
    assert_eq!(undo_left(&machine.0).unwrap_err().to_string(), "others may write to it");
    assert_eq!(machine.masks(), before);
    fs::set_permissions(machine.0.records(FOLDER), fs::Permissions::from_mode(0o700)).unwrap();

    // Half a record: nothing was set yet.
    fs::write(record::path(&machine.0.records(FOLDER), 40, 3), "{\"interface\":\"eth1\",").unwrap();
    assert_eq!((machine.undo_left(), machine.records()), (Vec::new(), 0));

    // Another namespace's /sys.
    let (zone, notes) = Zone::enter(&machine.0, ("eth1", 4), &[1], None, 7);
    assert!(zone.is_none() && notes[0].ends_with("/sys shows another network namespace"), "{notes:?}");

    // irqbalance(1) is told of.
    machine.make("proc/12/comm", "irqbalance");
    let (zone, notes) = machine.enter(&[1, 2], true);
    assert_eq!(notes, ["irqbalance runs, and may move the interrupts of eth1 to other cores: stop it"]);
    drop(zone);

    // A file that takes no mask (any more).
    let file = machine.path("proc/irq/31/smp_affinity");
    let refuses = || {
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/sys/class/net/lo/ifindex", &file).unwrap();
    };
    machine.make("proc/12/comm", "other");
    let zone = machine.enter(&[0, 1], true).0.unwrap();
    refuses();
    let failed = zone.leave();
    assert!(failed.len() == 1 && failed[0].starts_with(file.to_str().unwrap()), "{failed:?}");
    assert_eq!(machine.records(), 1);
    let [(_, _, End::Undone(undone))] = &machine.undo_left()[..] else { panic!("no record") };
    assert_eq!((undone.undone, undone.failed.len(), machine.records()), (0, 1, 1));
    // The next zone has the masks from before them all.
    let (zone, notes) = machine.enter(&[1, 0], true);
    assert!(notes[0].starts_with("eth1: 1 of 5 settings not made: "), "{notes:?}");
    fs::remove_file(&file).unwrap();
    machine.make("proc/irq/31/smp_affinity", "2");
    assert_eq!(zone.unwrap().leave(), Vec::<String>::new());
    assert_eq!((machine.masks().as_str(), machine.records()), ("f f f f 0 3 c", 0));
}

/// Ports that rules bring to each of two queues, IPv4's and IPv6's.
fn steered(nic: &Nic) -> [[usize; 2]; 2] {
    let mut ports = [[0; 2]; 2];
    for (_, [flow, port, mask, queue]) in nic.rules() {
        assert!(port & !mask == 0 && mask != 0);
        // Bits of the second half that are not compared.
        ports[usize::from(flow == 5)][queue as usize] += 1 << (16 - mask.count_ones());
    }
    ports
}

#[test]
fn rules_bring_a_cores_ports_to_its_queue() {
    let nic = Nic::new(1024, true);
    let machine = Folders::with_two_queues().drive("mlx5_core", nic.clone());
    let blocks = Blocks::deal((32_768, 60_999), &[2, 1], 0, true);
    let (zone, notes) = machine.enter(&[2, 1], true);
    let zone = zone.unwrap();
    let size = usize::from(blocks.size);
    assert_eq!((steered(&nic), zone.rules(), notes.len()), ([[size; 2]; 2], 4 * size / 1024, 0));
    // A port of the block of core 2, whose queue is the first of two.
    let (_, [_, port, _, queue]) = nic.rules().pop().unwrap();
    let [.., high, low] = port.to_ne_bytes();
    assert_eq!((u16::from_be_bytes([high, low]), queue), (blocks.of(2).unwrap().0, 0));
    assert_eq!(zone.leave(), Vec::<String>::new());
    assert_eq!((nic.rules().len(), machine.records()), (0, 0));

    // Nothing is inserted where ports are not dealt, nor by drivers whose sources were not read.
    drop(machine.enter(&[1, 2], false).0.unwrap());
    let other = Folders::with_two_queues().drive("macb", nic.clone());
    assert_eq!(other.enter(&[1, 2], true).0.unwrap().rules(), 0);
    // Cores beyond the queues have none, nor has a queue whose interrupt is not known.
    let machine = Folders::new(&["0"; 2], &[], &[(30, "eth1-TxRx-1", "f")]).drive("ixgbe", nic.clone());
    let zone = machine.enter(&[0, 1, 2], true).0.unwrap();
    assert!(zone.rules() > 0 && nic.rules().iter().all(|(_, rule)| rule[3] == 1));
}

#[test]
fn rules_that_cannot_be_had_are_told() {
    let mut nic = Nic::new(1024, false);
    let machine = Folders::with_two_queues().drive("ixgbe", nic.clone());
    // One that has IPv4 alone.
    let (zone, notes) = machine.enter(&[1, 2], true);
    assert_eq!(notes, ["eth1: 26 of 52 rules by port not made: invalid argument"]);
    assert_eq!((zone.as_ref().unwrap().rules(), nic.rules().len()), (26, 26));
    drop(zone);
    assert_eq!(nic.rules().len(), 0);

    nic.on = false;
    let machine = Folders::with_two_queues().drive("ixgbe", nic.clone());
    let (zone, notes) = machine.enter(&[1, 2], true);
    assert_eq!(notes, ["eth1 has no rules by port: they are off: ethtool -K eth1 ntuple on"]);
    assert_eq!((zone.unwrap().rules(), nic.rules().len()), (0, 0));

    // An interrupt that its driver keeps.
    let nic = Nic::new(1024, true);
    let machine = Folders::with_two_queues().drive("mlx5_core", nic.clone());
    let file = machine.path("proc/irq/31/smp_affinity");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/sys/class/net/lo/addr_len", &file).unwrap();
    let (zone, notes) = machine.enter(&[1, 2], true);
    assert_eq!(notes[1], "eth1: 26 of 52 rules by port not made: interrupts of their queues stay on other cores");
    assert_eq!((zone.unwrap().rules(), steered(&nic)), (26, [[0, 13_312]; 2]));
}

#[test]
fn ports_on_which_somebody_listens_have_no_rules() {
    let nic = Nic::new(1024, true);
    let machine = Folders::with_two_queues().drive("mlx5_core", nic.clone());
    let blocks = Blocks::deal((32_768, 60_999), &[1, 2], 0, true);
    let mut zone = machine.enter(&[1, 2], true).0.unwrap();
    let all = nic.rules().len();
    zone.listens(443);
    assert_eq!((zone.rules(), nic.rules().len()), (all, all));
    zone.listens(blocks.of(1).unwrap().0 + 5);
    assert_eq!((zone.rules(), nic.rules().len()), (all - 2, all - 2));
    assert_eq!(zone.leave(), Vec::<String>::new());
    assert_eq!(nic.rules().len(), 0);
}

#[test]
fn rules_of_a_killed_process_are_removed_and_others_stay() {
    let nic = Nic::new(1024, true);
    let machine = Folders::with_two_queues().drive("mlx5_core", nic.clone());
    // An administrator's, which the zone would have made too.
    let (first, last) = Blocks::deal((32_768, 60_999), &[1, 2], 0, true).pieces(1).next().unwrap();
    let foreign = Rule { ipv6: false, first, last, queue: 0 };
    filters("eth1").unwrap().insert(std::slice::from_ref(&foreign));
    kill(machine.enter(&[1, 2], true).0.unwrap());
    assert_eq!(nic.rules().len(), 52);
    // While the NIC does not answer they are kept in mind, and no other program's follow.
    NIC.set(None);
    let [(_, _, End::Undone(undone))] = &machine.undo_left()[..] else { panic!("no record") };
    assert_eq!((undone.undone, undone.failed.as_slice()), (3, &["rules of eth1: not connected".to_owned()][..]));
    let (zone, notes) = machine.enter(&[1, 2], true);
    let why = "rules of an earlier program cannot be removed: not connected";
    assert!(zone.is_none() && notes == [format!("queues of eth1 stay as they are: {why}")], "{notes:?}");
    NIC.set(Some(nic.clone()));
    let undone = Undone { undone: 51, ..Undone::default() };
    assert_eq!(machine.undo_left(), [("eth1".into(), 7, End::Undone(undone))]);
    assert_eq!((nic.rules().len(), machine.records()), (1, 0));
    assert_eq!(filters("eth1").unwrap().rules().unwrap()[0].1, foreign);
}
