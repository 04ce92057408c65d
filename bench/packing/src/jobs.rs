//! Job lists: mixes of profiles with random arrivals and random lives.

use anyhow::{Context as _, bail};

use crate::oracle::gpus_needed;
use crate::profile::{PerProfile, Profile};
use crate::random::Random;

/// One job. Times are in mean lives.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// When it asks for its instance.
    pub arrival: f64,
    /// How long it keeps its instance.
    pub life: f64,
    pub profile: Profile,
}

/// How often each profile is asked for.
#[derive(Debug)]
pub struct Mix {
    /// The mix's name in tables.
    pub name: &'static str,
    weights: PerProfile<f64>,
}

impl Mix {
    /// The shares, which add up to one.
    pub fn shares(&self) -> PerProfile<f64> {
        let all: f64 = self.weights.iter().sum();
        self.weights.map(|weight| weight / all)
    }
}

/// The nine mixes. The last three are counts of real pods: those of Alibaba's trace of 2023 with one GPU; of these only
/// those that share one (GPU share times 80 GB); and the pods of its trace of 2026 that serve generative models (peak
/// memory).
pub const MIXES: [Mix; 9] = [
    Mix { name: "uniform", weights: [1.0, 1.0, 1.0, 1.0, 1.0, 1.0] },
    Mix { name: "small", weights: [0.40, 0.15, 0.25, 0.10, 0.05, 0.05] },
    Mix { name: "large", weights: [0.05, 0.05, 0.10, 0.25, 0.20, 0.35] },
    Mix { name: "bimodal", weights: [0.40, 0.05, 0.05, 0.05, 0.05, 0.40] },
    Mix { name: "mid", weights: [0.05, 0.15, 0.35, 0.35, 0.10, 0.0] },
    Mix { name: "nosub20", weights: [0.5, 0.0, 0.3, 0.15, 0.05, 0.0] },
    Mix { name: "openb1", weights: [31.0, 138.0, 139.0, 896.0, 396.0, 5389.0] },
    Mix { name: "openbsh", weights: [31.0, 138.0, 139.0, 896.0, 396.0, 1478.0] },
    Mix { name: "genai", weights: [2.0, 6.0, 6.0, 68.0, 10.0, 51.0] },
];

/// The conditions under which a mix is played.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// The scenario's name in tables.
    pub name: &'static str,
    pub gpus: usize,
    /// The load, as a part of what the GPUs could serve if jobs were a fluid.
    pub load: f64,
    /// Whether the mix is reversed half-way.
    pub drift: bool,
    /// Whether lives are lognormal with sigma 1.5, instead of exponential.
    pub lognormal: bool,
}

impl Scenario {
    /// A scenario without drift and with exponential lives.
    pub const fn plain(name: &'static str, gpus: usize, load: f64) -> Self {
        Self { name, gpus, load, drift: false, lognormal: false }
    }

    /// A random job list of a mix.
    pub fn jobs(&self, mix: &Mix, count: usize, seed: u64) -> Vec<Job> {
        let now = mix.shares();
        let mut later = now;
        if self.drift {
            later.reverse();
        }
        let offered = self.load * crate::report::as_f64(self.gpus);
        let rates = [offered / gpus_needed(&now), offered / gpus_needed(&later)];
        let mut random = Random::new(seed);
        let mut arrival = 0.0;
        let job = |n: usize| {
            let (shares, rate) = if 2 * n < count { (&now, rates[0]) } else { (&later, rates[1]) };
            arrival += random.exponential() / rate;
            let profile = Profile::ALL[random.pick(shares)];
            let life = if self.lognormal { random.lognormal(-1.125, 1.5) } else { random.exponential() };
            Job { arrival, life, profile }
        };
        (0..count).map(job).collect()
    }
}

/// Reads a job list: a line `arrival duration profile` for each job.
pub fn read(text: &str) -> anyhow::Result<Vec<Job>> {
    let job = |(line, text): (usize, &str)| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [arrival, life, profile] = words[..] else { bail!("line {line}: {} words", words.len()) };
        let job =
            || anyhow::Ok(Job { arrival: arrival.parse()?, life: life.parse()?, profile: profile.parse()? });
        job().with_context(|| format!("line {line}: {text:?}"))
    };
    (1..).zip(text.lines()).map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::as_f64;

    fn shares_of(jobs: &[Job]) -> PerProfile<f64> {
        let count = |profile| jobs.iter().filter(|job| job.profile == profile).count();
        Profile::ALL.map(|profile| as_f64(count(profile)) / as_f64(jobs.len()))
    }

    fn near(found: &[f64], wanted: &[f64]) -> bool {
        found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 0.02)
    }

    #[test]
    fn a_list_asks_for_its_mix_at_its_load() {
        let jobs = Scenario::plain("", 96, 0.95).jobs(&MIXES[1], 30_000, 1);
        assert!(near(&shares_of(&jobs), &MIXES[1].shares()));
        let rate = as_f64(jobs.len()) / jobs[jobs.len() - 1].arrival;
        let wanted = 0.95 * 96.0 / gpus_needed(&MIXES[1].shares());
        assert!((rate / wanted - 1.0).abs() < 0.02, "{rate} against {wanted}");
    }

    #[test]
    fn a_mix_that_drifts_is_reversed_half_way() {
        let scenario = Scenario { drift: true, ..Scenario::plain("", 96, 0.95) };
        let jobs = scenario.jobs(&MIXES[1], 30_000, 1);
        let mut reversed = MIXES[1].shares();
        assert!(near(&shares_of(&jobs[..15_000]), &reversed));
        reversed.reverse();
        assert!(near(&shares_of(&jobs[15_000..]), &reversed));
    }

    #[test]
    fn a_bad_line_is_named() {
        assert_eq!(read("0 1 1g.10gb\n1 1\n").unwrap_err().to_string(), "line 2: 2 words");
    }
}
