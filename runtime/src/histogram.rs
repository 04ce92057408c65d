//! Histograms with classic and native buckets, filled by the same observations.

use prometheus_client::metrics::histogram::{Histogram, NativeHistogramConfig};

/// Native buckets grow by a factor of 2^(1/8), about 9 % each.
const SCHEMA: i8 = 3;

/// The most native buckets of one histogram. Beyond it their width doubles, so that widely spread values cannot use up
/// memory.
const BUCKET_LIMIT: usize = 160;

/// Makes a histogram with classic buckets of these upper bounds, and with native buckets.
///
/// The text format has the classic buckets alone, the protobuf format has both.
#[must_use]
pub fn histogram(classic: impl IntoIterator<Item = f64>) -> Histogram {
    let native = NativeHistogramConfig::with_schema(SCHEMA).max_buckets(BUCKET_LIMIT);
    Histogram::new_classic_and_native(classic, native)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::prometheus_protobuf::encode;
    use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::Histogram as Encoded;
    use prometheus_client::registry::Registry;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn encoded(values: &[f64]) -> Encoded {
        let mut registry = Registry::default();
        let observed = histogram([0.01, 1.0]);
        registry.register("seconds", "Seconds", observed.clone());
        for value in values {
            observed.observe(*value);
        }
        encode(&registry).unwrap().remove(0).metric.remove(0).histogram.unwrap()
    }

    /// The counts of the native buckets by index, decoded from spans and deltas.
    fn native(histogram: &Encoded) -> BTreeMap<i32, i64> {
        let (mut counts, mut index, mut count) = (BTreeMap::new(), 0, 0);
        let mut deltas = histogram.positive_delta.iter();
        for span in &histogram.positive_span {
            index += span.offset;
            for _ in 0..span.length {
                count += deltas.next().unwrap();
                counts.insert(index, count);
                index += 1;
            }
        }
        counts.retain(|_, count| *count > 0);
        counts
    }

    proptest! {
        /// Bucket `i` of schema 3 reaches from 2^((i-1)/8), excluded, to 2^(i/8).
        #[test]
        fn each_value_is_in_the_native_bucket_of_the_formula(exponent in -14.0_f64..17.0) {
            let value = exponent.exp2();
            let counts = native(&encoded(&[value]));
            let (index, count) = counts.into_iter().next().unwrap();
            prop_assert_eq!(count, 1);
            let (low, high) = ((f64::from(index - 1) / 8.0).exp2(), (f64::from(index) / 8.0).exp2());
            // Rounding may shift a bound of the table by one unit against the formula.
            prop_assert!(low * (1.0 - 1e-12) < value && value <= high * (1.0 + 1e-12), "{value} in {low}..{high}");
        }

        #[test]
        fn both_kinds_of_buckets_count_every_observation(values in prop::collection::vec(1e-4_f64..1e5, 0..200)) {
            let encoded = encoded(&values);
            let number = values.len() as u64;
            prop_assert_eq!(encoded.sample_count, number);
            prop_assert_eq!(encoded.bucket.last().map(|bucket| bucket.cumulative_count), Some(number));
            prop_assert_eq!(native(&encoded).values().sum::<i64>(), number.cast_signed());
            prop_assert_eq!(encoded.schema, 3);
        }
    }

    #[test]
    fn a_bucket_includes_its_upper_bound_and_zero_has_its_own() {
        assert_eq!(native(&encoded(&[1.0, 2.0, 0.5])), BTreeMap::from([(-8, 1), (0, 1), (8, 1)]));
        let zero = encoded(&[0.0]);
        assert_eq!((zero.zero_count, native(&zero).len()), (1, 0));
    }

    #[test]
    fn widely_spread_values_widen_the_buckets() {
        let values: Vec<f64> = (-100..100).map(|exponent| f64::from(exponent).exp2()).collect();
        let encoded = encoded(&values);
        assert!(encoded.schema < 3 && encoded.positive_delta.len() <= BUCKET_LIMIT, "{}", encoded.schema);
        assert_eq!(native(&encoded).values().sum::<i64>(), 200);
    }
}
