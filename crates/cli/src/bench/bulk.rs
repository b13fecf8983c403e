//! Bulk: from the server, as it leaves; and to the server, by frames of one segment or of many.

mod flow;

use super::Settings;
use super::case::{Case, System, Wire, Work};
use super::child::Child;
use super::figures::{BULKY, EPOLL, OURS, systems};
use super::measure::{self, Layout, Measurement, START, Watch, list};
use super::numbers::take_report;
use super::place::{self, Place, SERVER, Side};
use crate::failure::Failure;
pub use flow::{Part, part};

/// Bulk leaves as several segments at once that the kernel cuts before the device, or as a frame for each.
const CUT: &str = "cut by the kernel";
const EACH: &str = "a frame each";
/// The label of rows to the server.
const ARRIVING: &str = "arriving";
/// The server's port, where it receives.
const PORT: u16 = 80;

/// A size at which GRO merges nothing.
const NEVER: &str = "1";

/// Where bulk to the server comes in, and whether GRO merges frames on the veth there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arriving {
    /// On a bridge above the veth (XDP's generic mode), not on the veth itself (its driver mode).
    bridge: bool,
    /// GRO merges frames. It is on all the same where it does not: without it a veth has no NAPI, whose thread keeps the work of
    /// receiving on the server's core.
    merged: bool,
}

impl Arriving {
    const ALL: [Arriving; 4] = [
        Arriving { bridge: false, merged: false },
        Arriving { bridge: false, merged: true },
        Arriving { bridge: true, merged: false },
        Arriving { bridge: true, merged: true },
    ];

    fn name(self) -> &'static str {
        match (self.bridge, self.merged) {
            (false, false) => "veth, single",
            (false, true) => "veth, GRO",
            (true, false) => "bridge, single",
            (true, true) => "bridge, GRO",
        }
    }

    /// Of a case; `None` where bulk comes from the server.
    fn of(case: &Case) -> Option<Arriving> {
        let (_, name) = case.labels.iter().find(|(label, _)| *label == ARRIVING)?;
        Arriving::ALL.into_iter().find(|arriving| name == arriving.name())
    }

    /// Makes it so; the server's interface.
    fn prepare(self, place: &Place) -> Result<String, Failure> {
        if !self.merged {
            place.set_gro_max_size(Side::Server, NEVER)?;
        }
        if self.bridge { place.bridge_server() } else { Ok(place.interface(Side::Server).to_owned()) }
    }
}

/// The cases, from the server first.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Vec<Case> {
    let bulk =
        Work { message: 64 << 20, messages: 1_000_000, warm_up: Some(settings.warm_up * 2.0), ..Work::default() };
    let work = |flows| Work { concurrent: flows, ..bulk.clone() };
    let flows = [1, settings.concurrent.unwrap_or(64)];
    let mut cases: Vec<Case> = flows.into_iter().flat_map(|n| from_server(settings, &work(n))).collect();
    let flows = if settings.quick { &flows[..1] } else { &flows };
    let to_server: Vec<Case> = flows.iter().flat_map(|n| to_server(settings, &work(*n))).collect();
    if !to_server.is_empty() {
        notes.push(
            "arriving: bulk to the server, which the kernel's TCP sends in all rows, cut into frames of a segment; veth: XDP's driver \
             mode, which comes before GRO; bridge: its generic mode, on a bridge above the veth, which comes after; single: GRO merges \
             nothing (gro_max_size 1), which costs its tries; bytes/frame: read by the application, for each frame that corelane was \
             given"
                .into(),
        );
    }
    cases.extend(to_server);
    cases
}

/// Each system at bulk, and this stack and the kernel's once more with a frame for each segment, where they could do otherwise.
fn from_server(settings: &Settings, work: &Work) -> Vec<Case> {
    let case = |system, wire| {
        let at_once = Case::new(system, wire, work.clone()).label("sending", CUT);
        let each = || Case { frame_each: true, ..Case::new(system, wire, work.clone()).label("sending", EACH) };
        match (system, wire) {
            // Nothing cuts there.
            (_, Wire::Mem) => vec![each()],
            (OURS | EPOLL, Wire::Xdp) => vec![at_once, each()],
            _ => vec![at_once],
        }
    };
    systems(settings, &BULKY).into_iter().flat_map(|(system, wire)| case(system, wire)).collect()
}

fn to_server(settings: &Settings, work: &Work) -> Vec<Case> {
    let work = Work { messages: 0, message: 0, ..work.clone() };
    let receivers: Vec<_> =
        systems(settings, &[OURS, EPOLL]).into_iter().filter(|(_, wire)| *wire == Wire::Xdp).collect();
    let case = |arriving: Arriving| {
        let case = |(system, wire): &(System, Wire)| Case::new(*system, *wire, work.clone());
        receivers.iter().map(|who| case(who).label(ARRIVING, arriving.name())).collect::<Vec<_>>()
    };
    Arriving::ALL.into_iter().flat_map(case).collect()
}

/// Measures one.
pub fn measure(case: &Case, settings: &Settings) -> Result<Measurement, Failure> {
    let Some(arriving) = Arriving::of(case) else { return measure::measure(case, settings) };
    let layout = Layout::of(case, settings);
    let mut place = Place::new(layout.server.len(), 1)?;
    let interface = arriving.prepare(&place)?;
    let patience = settings.patience(&case.work);
    let mut receiver = receiver(&place, case, settings, &layout, &interface)?;
    let napi = place.pin(&layout.client, &layout.server)?;
    let mut sender = sender(&place, case, &layout)?;
    let mut watch = Watch::new(layout, vec![receiver.pid(), sender.pid()], napi);
    let mut found = Measurement::default();
    receiver.event("measuring", START + patience)?;
    watch.begin();
    let (before, received) = (place.frames(), watch.server_napi_time());
    receiver.event("measured", patience)?;
    let busy = watch.end(&mut found);
    let (after, received) = (place.frames(), watch.server_napi_time().saturating_sub(received));
    take_report(&receiver.finish(patience)?, busy, &mut found);
    // Its connections are gone, which ends it.
    sender.end(patience)?;
    measure::take_wire(&place, (before, after), (received, busy), &mut found)?;
    Ok(found)
}

/// Starts what receives; it accepts connections when this returns.
fn receiver(
    place: &Place,
    case: &Case,
    settings: &Settings,
    layout: &Layout,
    interface: &str,
) -> Result<Child, Failure> {
    let mut command = place.command(Side::Server, &place::this_program());
    command.args(["bench-part", "bulk", "receive", "--port", &PORT.to_string(), "--cores", &list(&layout.server)]);
    command.args(["--duration", &case.work.seconds.unwrap_or(settings.seconds).to_string()]);
    command.args(["--warm-up", &case.work.warm_up.unwrap_or(settings.warm_up).to_string()]);
    match case.system {
        System::Kernel(_) => drop(command.arg("--kernel")),
        _ => drop(command.args(["--dev", &format!("xdp:{interface}")])),
    }
    let mut receiver = Child::spawn(command, "the receiver")?;
    receiver.event("ready", START)?;
    Ok(receiver)
}

/// Starts what sends; it is connected when this returns.
fn sender(place: &Place, case: &Case, layout: &Layout) -> Result<Child, Failure> {
    let mut command = place.command(Side::Client, &place::this_program());
    command.args(["bench-part", "bulk", "send", "--to", &format!("{SERVER}:{PORT}")]);
    command.args(["--connections", &case.work.concurrent.to_string(), "--cores", &list(&layout.client)]);
    let mut sender = Child::spawn(command, "the sender")?;
    sender.event("connected", START)?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cases: &[Case], label: &str) -> Vec<String> {
        let label = |case: &Case| case.keys().get(label).and_then(|value| value.as_str().map(str::to_owned));
        let row = |case: &Case| Some(format!("{} {} {}", case.system.name(), case.wire.name(), label(case)?));
        cases.iter().filter_map(row).collect()
    }

    #[test]
    fn bulk_is_sent_both_ways_by_this_stack_and_the_kernels() {
        let settings = Settings { wires: vec![Wire::Mem, Wire::Xdp], ..Settings::default() };
        let cases = from_server(&settings, &Work::default());
        assert!(cases.iter().all(|case| case.frame_each == (case.keys()["sending"] == EACH)));
        let expected = [
            "corelane mem a frame each",
            "corelane xdp cut by the kernel",
            "corelane xdp a frame each",
            "linux-epoll xdp cut by the kernel",
            "linux-epoll xdp a frame each",
            "linux-uring xdp cut by the kernel",
        ];
        assert_eq!(rows(&cases, "sending"), expected);
    }

    #[test]
    fn bulk_arrives_at_both_in_every_kind_of_frames() {
        let settings = Settings { wires: vec![Wire::Mem, Wire::Xdp], quick: true, ..Settings::default() };
        let mut notes = Vec::new();
        let all = cases(&settings, &mut notes);
        let expected: Vec<String> = Arriving::ALL
            .iter()
            .flat_map(|arriving| ["corelane", "linux-epoll"].map(|who| format!("{who} xdp {}", arriving.name())))
            .collect();
        assert_eq!((rows(&all, ARRIVING), notes.len()), (expected, 1));
        let of: Vec<_> = all.iter().filter_map(Arriving::of).collect();
        assert_eq!(of.len(), 2 * Arriving::ALL.len());
        assert!(Arriving::ALL.iter().all(|arriving| of.contains(arriving)));
        let settings = Settings { wires: vec![Wire::Mem], ..settings };
        assert!(cases(&settings, &mut notes).iter().all(|case| Arriving::of(case).is_none()));
        assert_eq!(notes.len(), 1);
    }
}
