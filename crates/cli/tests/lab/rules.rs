//! `corelane run --dev` on a NIC that has receive rules: a stand-in for its driver, and for what /sys and /proc show of it.

use super::run::{library, two_cores};
use super::*;

/// Two queues of va with an interrupt each, rules while a program runs that listens on a port of a block, after its end, and after a
/// kill of everything. Numbers of rules are as ethtool(8) counts them.
const SCRIPT: &str = r#"
set -e
export LD_PRELOAD=$DIR/nic.so NIC_INTERFACE=va NIC_TABLE=$DIR/table
device=$DIR/net/va
mkdir -p $device/device/msi_irqs
cat /sys/class/net/va/ifindex >$device/ifindex
ln -s /sys/bus/pci/drivers/mlx5_core $device/device/driver
for n in 0 1; do
    mkdir -p $device/queues/rx-$n $device/queues/tx-$n $DIR/irq/90$n/va-TxRx-$n
    echo 0 >$device/queues/rx-$n/rps_cpus; echo 0 >$device/queues/tx-$n/xps_cpus
    echo 3 >$DIR/irq/90$n/smp_affinity; touch $device/device/msi_irqs/90$n
done
mount --bind $DIR/net /sys/class/net
mount --bind $DIR/irq /proc/irq
rules() { echo "$1 $(ethtool -n va | grep -c Filter:)"; }
start() {
    rm -f $DIR/ready
    $BIN run --strict --dev va --cores 0,1 --report $DIR/report -- python3 $DIR/listens.py 2>/dev/null &
    program=$!
    until [ -e $DIR/ready ]; do kill -0 $program; sleep 0.05; done
}
start
rules during
ethtool -n va | grep -A8 "Filter: 1023" | grep -E "Type|Dest port|Action"
kill $program
until grep -q '^}' $DIR/report; do sleep 0.05; done
grep -o '"rules": [0-9]*' $DIR/report
rules after
start
pkill -KILL -f "[r]un-helper --program $program"
kill -KILL $program
rules killed
$BIN tune --undo | grep va: | sed 's/pid [0-9]*/pid/'
rules undone
cat $DIR/irq/90?/smp_affinity
"#;

const LISTENS: &str = r#"
import select, socket, sys, time
listener = socket.create_server(("10.99.0.1", 50000))
select.epoll().register(listener.fileno(), select.EPOLLIN)
open(sys.argv[0].replace("listens.py", "ready"), "w").close()
time.sleep(60)
"#;

#[test]
fn rules_of_a_nic_come_and_go_with_the_program() {
    if !two_cores() {
        return;
    }
    let Some(lab) = Lab::new() else { return };
    let path = |name: &str| lab.dir.join(name).display().to_string();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/nic.c");
    must(&format!("${{CC:-cc}} -Wall -Werror -shared -fPIC -o {} {source} -ldl", path("nic.so")));
    std::fs::write(path("script"), SCRIPT).unwrap();
    std::fs::write(path("listens.py"), LISTENS).unwrap();
    let variables = format!("DIR={} BIN={BIN} CORELANE_PRELOAD={}", lab.dir.display(), library().display());
    let said = must(&format!("{variables} timeout 60 ip netns exec {} sh {}", lab.a, path("script")));
    // 13 ranges of each core's block, of two families, but for the range of the port on which the program listens.
    let [during, kind, port, queue, rest @ ..] = &said.lines().map(str::trim).collect::<Vec<_>>()[..] else {
        panic!("{said}")
    };
    assert_eq!((*during, *kind), ("during 50", "Rule Type: TCP over IPv4"), "{said}");
    assert!(port.starts_with("Dest port: ") && port.ends_with(" mask: 0x3ff"), "{said}");
    assert_eq!(*queue, "Action: Direct to queue 0", "{said}");
    let undone = "va: 54 settings of corelane run (pid) undone";
    assert_eq!(rest, ["\"rules\": 50", "after 0", "killed 50", undone, "undone 0", "33"], "{said}");
}
