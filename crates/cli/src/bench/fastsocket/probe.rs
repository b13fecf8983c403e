//! Numbers of a step beside its rate: local packets, balance, lock waits, cache misses, and each worker's time.

use super::super::measure::Measurement;
use crate::processes;
use io::bpf::Read;
use io::perf::{Counter, Tracepoint};
use std::time::{Duration, Instant};

/// Local packets as shares, and how even the cores have read (busiest to idlest).
pub fn take_locality(read: &[Read], cores: &[usize], found: &mut Measurement) {
    let share = |of: fn(&Read) -> [u64; 2]| {
        let [here, elsewhere] = read.iter().map(of).fold([0; 2], |sum, pair| [sum[0] + pair[0], sum[1] + pair[1]]);
        (here + elsewhere > 0).then(|| here as f64 / (here + elsewhere) as f64)
    };
    for (name, share) in [("local_accepted", share(|read| read.accepted)), ("local_opened", share(|read| read.opened))]
    {
        share.into_iter().for_each(|share| found.set(name, share));
    }
    let served = cores.iter().map(|core| read.get(*core).map_or(0, |read| read.accepted.iter().sum::<u64>()));
    let (least, most) = served.fold((u64::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
    if cores.len() > 1 && most > 0 {
        found.set("balance", most as f64 / least.max(1) as f64);
    }
}

/// Counters of the whole machine that run.
pub struct Counters(Vec<(&'static str, Counter)>);

impl Counters {
    /// Opens those that there are; a remark on each other.
    pub fn open(cpus: u32, found: &mut Measurement) -> Counters {
        let locks = Tracepoint::find("lock/contention_begin").and_then(|point| Counter::hits(&point, cpus));
        let counters = [("lock_waits", locks), ("cache_misses", Counter::cache_misses(cpus))];
        let open = counters.into_iter().filter_map(|(name, counter)| match counter {
            Ok(counter) => Some((name, counter)),
            Err(error) => {
                found.remarks.insert(format!("{} are not counted on this machine: {error}", name.replace('_', " ")));
                None
            }
        });
        Counters(open.collect())
    }

    /// Counted since then, by name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.0.iter().filter_map(|(name, counter)| Some((*name, counter.count().ok()?))).collect()
    }
}

/// CPU time of each thread of the server, from one moment on.
pub struct Workers {
    since: Instant,
    threads: Vec<(u32, u32, Duration)>,
}

impl Workers {
    /// Of these processes.
    pub fn of(pids: &[u32]) -> Workers {
        let threads = pids.iter().flat_map(|pid| processes::threads(*pid).into_iter().map(|thread| (*pid, thread.tid)));
        let threads = threads.filter_map(|(pid, tid)| Some((pid, tid, run_time(pid, tid)?)));
        Workers { threads: threads.collect(), since: Instant::now() }
    }

    /// Shares of a core of the busiest `workers` threads: the least and the most (Fastsocket, fig. 3).
    pub fn take(&self, workers: usize, found: &mut Measurement) {
        let wall = self.since.elapsed().as_secs_f64();
        let used = |(pid, tid, before): &(u32, u32, Duration)| {
            run_time(*pid, *tid).map_or(0.0, |now| now.saturating_sub(*before).as_secs_f64())
        };
        let mut shares: Vec<f64> = self.threads.iter().map(|thread| used(thread) / wall).collect();
        shares.sort_by(|a, b| b.total_cmp(a));
        if let (Some(most), Some(least)) = (shares.first(), shares.get(workers.saturating_sub(1))) {
            found.set("busiest_worker", *most);
            found.set("idlest_worker", *least);
        }
    }
}

/// Time on a CPU of a thread, to the nanosecond (/proc/PID/task/TID/schedstat).
fn run_time(pid: u32, tid: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_balance_are_over_the_cores_of_the_server() {
        let line = |accepted, opened| Read { accepted, opened };
        let read = [line([90, 10], [0, 0]), line([0, 0], [0, 0]), line([40, 60], [1, 3])];
        let mut found = Measurement::default();
        take_locality(&read, &[0, 2], &mut found);
        assert_eq!((found.values["local_accepted"], found.values["local_opened"]), (0.65, 0.25));
        assert_eq!(found.values["balance"], 1.0);
        take_locality(&read, &[0, 1], &mut found);
        assert_eq!(found.values["balance"], 100.0);
        let mut none = Measurement::default();
        take_locality(&[Read::default()], &[0], &mut none);
        assert!(none.values.is_empty());
    }

    #[test]
    fn a_thread_that_works_is_the_busiest() {
        let workers = Workers::of(&[std::process::id()]);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        let mut found = Measurement::default();
        workers.take(1, &mut found);
        assert!(
            found.values["busiest_worker"] > 0.0 && found.values["idlest_worker"] == found.values["busiest_worker"]
        );
    }
}
