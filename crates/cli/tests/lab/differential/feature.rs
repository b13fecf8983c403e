//! Features that a request or an answer can have, and cases made of them.

/// One oddity, named for the list of differences. At most one of a group is in a case.
pub struct Feature<T> {
    pub group: &'static str,
    pub name: &'static str,
    pub set: fn(&mut T),
}

impl<T> Feature<T> {
    pub const fn new(group: &'static str, name: &'static str, set: fn(&mut T)) -> Feature<T> {
        Feature { group, name, set }
    }

    /// `group: name`, as a row of the list has it.
    pub fn title(&self) -> String {
        format!("{}: {}", self.group, self.name)
    }
}

/// Features of one case, by their places in the table, in its order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case(pub Vec<usize>);

impl Case {
    pub fn title<T>(&self, table: &[Feature<T>]) -> String {
        match self.0.as_slice() {
            [] => super::list::ORDINARY.to_owned(),
            all => all.iter().map(|&at| table[at].title()).collect::<Vec<_>>().join(" + "),
        }
    }

    /// With one more feature.
    pub fn with(&self, at: usize) -> Case {
        let mut places = self.0.clone();
        places.push(at);
        places.sort_unstable();
        Case(places)
    }

    pub fn build<T: Default>(&self, table: &[Feature<T>]) -> T {
        let mut made = T::default();
        self.0.iter().for_each(|&at| (table[at].set)(&mut made));
        made
    }

    /// One to three features, by a seed.
    pub fn random<T>(table: &[Feature<T>], seed: u64) -> Case {
        let mut random = Random(seed);
        let mut places: Vec<usize> = Vec::new();
        for _ in 0..1 + random.below(3) {
            let at = random.below(table.len());
            if places.iter().all(|&other| table[other].group != table[at].group) {
                places.push(at);
            }
        }
        places.sort_unstable();
        Case(places)
    }

    /// Every feature alone, and nothing odd at all.
    pub fn singles<T>(table: &[Feature<T>]) -> Vec<Case> {
        std::iter::once(Case(Vec::new())).chain((0..table.len()).map(|at| Case(vec![at]))).collect()
    }

    /// Every feature of one group with every one of another.
    pub fn pairs<T>(table: &[Feature<T>], one: &str, other: &str) -> Vec<Case> {
        let of = |group: &str| (0..table.len()).filter(|&at| table[at].group == group).collect::<Vec<_>>();
        let mut cases = Vec::new();
        for a in of(one) {
            cases.extend(of(other).into_iter().map(|b| Case(vec![a.min(b), a.max(b)])));
        }
        cases
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }
}
