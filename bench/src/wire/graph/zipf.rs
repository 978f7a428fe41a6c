//! Popularity: the more popular half of all draws falls on very few. Rank k (from 0) is drawn with
//! probability ln((k + 2) / (k + 1)) / ln(n + 1), which is Zipf's law with exponent 1 up to a
//! fraction at the first ranks, and needs no table.

use fastrand::Rng;

#[derive(Clone, Copy)]
pub struct Zipf {
    count: u32,
    log: f64,
}

impl Zipf {
    pub fn new(count: u32) -> Zipf {
        Zipf { count, log: f64::from(count + 1).ln() }
    }

    /// A rank below the count; 0 is drawn most often.
    pub fn draw(&self, random: &mut Rng) -> u32 {
        let rank = (random.f64() * self.log).exp() as u32;
        rank.clamp(1, self.count) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_as_often_as_the_law_says() {
        const DRAWS: u32 = 400_000;
        let zipf = Zipf::new(1_000);
        let mut random = Rng::with_seed(1);
        let mut drawn = vec![0_u32; 1_000];
        for _ in 0..DRAWS {
            drawn[zipf.draw(&mut random) as usize] += 1;
        }
        let share = |ranks: std::ops::Range<usize>| {
            f64::from(drawn[ranks].iter().sum::<u32>()) / f64::from(DRAWS)
        };
        let law = |ranks: std::ops::Range<usize>| {
            ((ranks.end + 1) as f64 / (ranks.start + 1) as f64).ln() / 1_001_f64.ln()
        };
        for ranks in [0..1, 1..2, 2..10, 10..100, 100..500, 500..1_000] {
            let (share, law) = (share(ranks.clone()), law(ranks.clone()));
            assert!((share - law).abs() < 0.005, "{ranks:?}: {share} instead of {law}");
        }
    }
}
