//! Segments that came out of order (RFC 9293 3.10.7.4, SHLD-31), bounded in number and by the window.
//!
//! Invariants: runs are in order, neither touch nor overlap, none is empty, and there are at most [`MAX_RUNS`].

use mem::{Chain, Side};
use wire::SeqNum;

/// Most separate runs kept for one connection.
const MAX_RUNS: usize = 128;

/// Runs of bytes beyond `rcv.nxt`, disjoint, in order, never touching one another.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    runs: Vec<Run>,
    /// Sequence number after the last data byte, once the FIN was seen.
    fin: Option<SeqNum>,
    /// Left edges of the runs that grew last, latest first, for SACK.
    recent: [Option<SeqNum>; 4],
}

/// What became of a segment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Nothing had to be dropped.
    pub kept: bool,
    /// The first bytes that were there already (RFC 2883).
    pub duplicate: Option<(SeqNum, SeqNum)>,
}

#[derive(Debug)]
struct Run {
    seq: SeqNum,
    chain: Chain,
}

impl Run {
    fn end(&self) -> SeqNum {
        self.seq + self.chain.len() as u32
    }
}

impl Reassembly {
    /// Keeps what is new of `data` at `seq`.
    pub fn insert(&mut self, pool: &mut Side, seq: SeqNum, data: &[u8]) -> Inserted {
        let mut duplicate = None;
        let kept = self.merge(pool, seq, data, &mut duplicate);
        self.touch(seq);
        Inserted { kept, duplicate }
    }

    /// The run that holds `seq` is reported first from now on (RFC 2018 4).
    fn touch(&mut self, seq: SeqNum) {
        let at = self.runs.partition_point(|r| !r.end().after(seq));
        let Some(left) = self.runs.get(at).filter(|r| r.seq.before_eq(seq)).map(|r| r.seq) else { return };
        // Edges that a run has swallowed go.
        let runs = &self.runs;
        let mut kept = self.recent.iter().flatten().filter(|l| **l != left && runs.iter().any(|r| r.seq == **l));
        let next = [kept.next(), kept.next(), kept.next()].map(|l| l.copied());
        self.recent = [Some(left), next[0], next[1], next[2]];
    }

    /// Blocks for a SACK option, the one that grew last first; then what else there is, as far as there is room.
    pub fn blocks(&self) -> impl Iterator<Item = (SeqNum, SeqNum)> + '_ {
        let recent = self.recent.iter().flatten().filter_map(|left| {
            let at = self.runs.partition_point(|r| r.seq.before(*left));
            self.runs.get(at).filter(|r| r.seq == *left)
        });
        let others = self.runs.iter().filter(|r| !self.recent.contains(&Some(r.seq)));
        recent.chain(others).map(|r| (r.seq, r.end())).take(4)
    }

    fn merge(
        &mut self,
        pool: &mut Side,
        mut seq: SeqNum,
        mut data: &[u8],
        duplicate: &mut Option<(SeqNum, SeqNum)>,
    ) -> bool {
        let mut i = self.runs.partition_point(|r| r.end().before(seq));
        // `runs[i]` is the first that ends at or after `seq`: it may touch, overlap or lie behind.
        while !data.is_empty() {
            let Some(run) = self.runs.get_mut(i) else {
                return self.add(pool, i, seq, data);
            };
            if seq.before(run.seq) {
                let gap = (run.seq.since(seq) as usize).min(data.len());
                let (front, rest) = data.split_at(gap);
                if !self.add(pool, i, seq, front) {
                    return false;
                }
                seq += gap as u32;
                data = rest;
                i = self.join(pool, i);
                continue;
            }
            let end = run.end();
            let known = (end.since(seq) as usize).min(data.len());
            if known > 0 && duplicate.is_none() {
                *duplicate = Some((seq, seq + known as u32));
            }
            data = &data[known..];
            seq += known as u32;
            if data.is_empty() {
                return true;
            }
            // `seq == end`: grow this run up to the next one.
            let room = self.runs.get(i + 1).map_or(data.len(), |n| (n.seq.since(seq) as usize).min(data.len()));
            let took = self.runs[i].chain.push_slice(pool, &data[..room]);
            seq += took as u32;
            data = &data[took..];
            if took < room {
                return false;
            }
            i = self.join(pool, i);
        }
        true
    }

    /// Merges `runs[i]` with its successor where they touch; the index to go on with.
    fn join(&mut self, pool: &mut Side, i: usize) -> usize {
        if i + 1 < self.runs.len() && self.runs[i].end() == self.runs[i + 1].seq {
            let next = self.runs.remove(i + 1);
            self.runs[i].chain.append(pool, next.chain);
        }
        i
    }

    fn add(&mut self, pool: &mut Side, i: usize, seq: SeqNum, data: &[u8]) -> bool {
        // However short a run, it takes a chunk: none that the streams themselves will need.
        if self.runs.len() >= MAX_RUNS || !pool.plenty() {
            return false;
        }
        let mut chain = Chain::default();
        let took = chain.push_slice(pool, data);
        if took > 0 {
            self.runs.insert(i, Run { seq, chain });
        }
        took == data.len()
    }

    /// Remembers that the stream ends at `end`.
    pub fn set_fin(&mut self, end: SeqNum) {
        self.fin = Some(end);
    }

    /// Whether the stream ends at `rcv_nxt`.
    pub fn fin_at(&self, rcv_nxt: SeqNum) -> bool {
        self.fin == Some(rcv_nxt)
    }

    /// What came again in order, up to `rcv_nxt`, of the first run.
    pub fn overlap(&self, rcv_nxt: SeqNum) -> Option<(SeqNum, SeqNum)> {
        self.runs.first().filter(|r| r.seq.before(rcv_nxt)).map(|r| (r.seq, r.end().min(rcv_nxt)))
    }

    /// The run that continues the stream at `rcv_nxt`, and how far it goes.
    pub fn take(&mut self, pool: &mut Side, rcv_nxt: SeqNum) -> Option<Chain> {
        loop {
            let first = self.runs.first()?;
            if first.seq.after(rcv_nxt) {
                return None;
            }
            let mut run = self.runs.remove(0);
            let known = rcv_nxt.since(run.seq) as usize;
            if known >= run.chain.len() {
                run.chain.free(pool);
                continue;
            }
            run.chain.consume(pool, known);
            return Some(run.chain);
        }
    }

    /// The bytes of each run.
    pub fn chains(&mut self) -> impl Iterator<Item = &mut Chain> {
        self.runs.iter_mut().map(|run| &mut run.chain)
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.fin.is_none()
    }

    /// Bytes that are.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|r| r.chain.len()).sum()
    }

    /// Asserts what the module's head says; the window ends at `adv`.
    pub fn check(&self, adv: SeqNum) {
        assert!(self.runs.len() <= MAX_RUNS, "{} runs out of order", self.runs.len());
        let mut end = None;
        for run in &self.runs {
            assert!(
                !run.chain.is_empty() && !run.end().after(adv),
                "{run:?} does not lie in the window, up to {adv:?}"
            );
            assert!(
                end.is_none_or(|end| run.seq.after(end)),
                "{run:?} touches the run before it, which ends at {end:?}"
            );
            end = Some(run.end());
        }
    }

    /// Nobody will read it.
    pub fn free(self, pool: &mut Side) {
        for run in self.runs {
            run.chain.free(pool);
        }
    }
}
