//! Reads a webhook process's histogram of admissions and its memory as Linux counts it.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BUCKET: &str = "kerf_webhook_admission_duration_seconds_bucket{le=\"";

/// A histogram: upper bounds in seconds, each with the count of all samples up to it, in order.
#[derive(Debug, PartialEq)]
pub struct Histogram(Vec<(f64, u64)>);

impl Histogram {
    /// The handler's histogram over all kinds of slice, from the text of `/metrics`.
    pub fn read(metrics: &str) -> anyhow::Result<Self> {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for line in metrics.lines().filter_map(|line| line.strip_prefix(BUCKET)) {
            let (end, rest) = line.split_once('"').context("a bucket has no end")?;
            let (_, count) = rest.split_once("} ").context("a bucket has no count")?;
            let end = if end == "+Inf" { f64::INFINITY } else { end.parse()? };
            let count: u64 = count.trim().parse()?;
            match buckets.iter_mut().find(|(known, _)| known.total_cmp(&end).is_eq()) {
                Some((_, sum)) => *sum += count,
                None => buckets.push((end, count)),
            }
        }
        ensure!(!buckets.is_empty(), "the metrics have no {BUCKET}");
        Ok(Self(buckets))
    }

    /// The samples that were added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let pairs = self.0.iter().zip(&before.0);
        Self(pairs.map(|((end, now), (_, then))| (*end, now.saturating_sub(*then))).collect())
    }

    pub fn count(&self) -> u64 {
        self.0.last().map_or(0, |(_, count)| *count)
    }

    /// The upper bound of the bucket that holds this percentile, in milliseconds.
    pub fn percentile_ms(&self, percent: u64) -> f64 {
        let needed = (self.count() * percent).div_ceil(100).max(1);
        let bucket = self.0.iter().find(|(_, count)| *count >= needed);
        bucket.map_or(f64::NAN, |(end, _)| end * 1000.0)
    }
}

pub async fn scrape(admin: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(admin).await.context("failed to connect to the admin address")?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: kerf\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(counts: [u64; 3]) -> String {
        let ends = ["0.0002", "0.0004", "+Inf"];
        let line = |kind, (end, count): (&&str, u64)| format!("{BUCKET}{end}\",kind=\"{kind}\"}} {count}\n");
        let none = ends.iter().zip([0, 0, 0]).map(|bucket| line("none", bucket));
        none.chain(ends.iter().zip(counts).map(|bucket| line("mig", bucket))).collect::<Vec<_>>().concat()
    }

    #[test]
    fn a_percentile_is_the_upper_end_of_its_bucket() {
        let before = Histogram::read(&text([1, 1, 1])).unwrap();
        let after = Histogram::read(&text([91, 100, 101])).unwrap().since(&before);
        assert_eq!((after.count(), after.percentile_ms(99)), (100, 0.4));
        assert!(Histogram::read(&text([0, 0, 100])).unwrap().percentile_ms(99).is_infinite());
        assert!(Histogram::read("nothing").is_err());
    }
}
