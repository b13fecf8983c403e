//! Medians, how sure they are, and the order of rounds.

/// Resamplings of a bootstrap.
const SAMPLES: usize = 2000;

/// The middle of some numbers; the mean of the two in the middle where there is no middle one.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// The 95 % interval of the median: the bootstrap's percentiles, drawn by a generator that starts the same each time.
pub fn interval(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return values.first().map(|value| (*value, *value));
    }
    let mut random = Random(0x0c0_7e1a_9e5e_eded);
    let mut sample = vec![0.0; values.len()];
    let medians = (0..SAMPLES).filter_map(|_| {
        sample.iter_mut().for_each(|value| *value = values[random.below(values.len())]);
        median(&sample)
    });
    let mut medians: Vec<f64> = medians.collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((medians.len() - 1) as f64 * share).round() as usize];
    Some((at(0.025), at(0.975)))
}

/// ABBA: every other round runs backwards, so that a machine that drifts favours nobody.
pub fn order(cases: usize, round: usize) -> Vec<usize> {
    match round % 2 {
        0 => (0..cases).collect(),
        _ => (0..cases).rev().collect(),
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, by the high half of a product: no bias that a bootstrap would notice.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn an_interval_holds_the_median_and_narrows_with_more_values() {
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&[5.0]), Some((5.0, 5.0)));
        let spread = |n: usize| -> Vec<f64> { (0..n).map(|at| 100.0 + (at * 37 % 100) as f64).collect() };
        let width = |values: &[f64]| {
            let (low, high) = interval(values).expect("there are values");
            let middle = median(values).expect("there are values");
            assert!(low <= middle && middle <= high, "{low} {middle} {high}");
            high - low
        };
        assert!(width(&spread(1000)) < width(&spread(10)));
        // One outlier in ten moves neither end.
        let mut outlier = vec![10.0; 9];
        outlier.push(1e9);
        assert_eq!(interval(&outlier), Some((10.0, 10.0)));
        // The same numbers, the same interval.
        assert_eq!(interval(&spread(20)), interval(&spread(20)));
    }

    #[test]
    fn rounds_alternate() {
        assert_eq!([order(3, 0), order(3, 1), order(3, 2)], [vec![0, 1, 2], vec![2, 1, 0], vec![0, 1, 2]]);
    }

    #[test]
    fn draws_cover_everything() {
        let mut random = Random(1);
        let mut seen = [0; 5];
        (0..5000).for_each(|_| seen[random.below(5)] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
