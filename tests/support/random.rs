//! Chance that can be repeated: every number follows from a seed that is printed.

/// xorshift64*
pub struct Random(u64);

impl Random {
    /// With the seed in `NODELET_SEED`, else with one of its own; says which.
    pub fn from_environment() -> Self {
        let given = std::env::var_os("NODELET_SEED").and_then(|seed| seed.to_str()?.parse().ok());
        let seed: u64 = given.unwrap_or_else(|| {
            u64::try_from(jiff::Timestamp::now().as_nanosecond() >> 10).unwrap()
        });
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        super::say_loudly(&format!("{test}: NODELET_SEED={seed}"));
        Self::from_seed(seed)
    }

    /// With this seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A seed for another one.
    pub fn seed(&mut self) -> u64 {
        u64::try_from(self.below(1 << 31)).unwrap()
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(high).unwrap() % bound
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
