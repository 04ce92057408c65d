//! The formats of the metrics, and the choice by a scraper's `Accept` header.

use prometheus_client::encoding::{prometheus_protobuf, text};
use prometheus_client::registry::Registry;
use thiserror::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `OpenMetrics` text: classic histograms only.
    Text,
    /// Prometheus' protobuf messages, each after its length: classic and native histograms.
    Protobuf,
}

#[derive(Debug, Error)]
pub(crate) enum ExpositionError {
    #[error("failed to write the metrics: {0}")]
    Text(#[from] std::fmt::Error),
    #[error("failed to encode the metrics: {0}")]
    Protobuf(#[from] prometheus_protobuf::EncodeError),
}

impl Form {
    /// The format that an `Accept` header prefers. It is protobuf only if the header names protobuf with a higher
    /// quality than any text.
    pub(crate) fn accepted(accept: &str) -> Self {
        let (mut text, mut protobuf) = (0.0, 0.0);
        for part in accept.split(',') {
            let mut words = part.split(';').map(str::trim);
            let kind = words.next().unwrap_or_default();
            let parameters: Vec<&str> = words.collect();
            let has = |parameter: &str| parameters.iter().any(|word| word.eq_ignore_ascii_case(parameter));
            let quality = parameters.iter().find_map(|word| word.strip_prefix("q="));
            let quality: f64 = quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
            if kind.eq_ignore_ascii_case("application/vnd.google.protobuf") {
                let is_ours = has("proto=io.prometheus.client.MetricFamily") && has("encoding=delimited");
                protobuf = if is_ours { quality.max(protobuf) } else { protobuf };
            } else if ["application/openmetrics-text", "text/plain"].contains(&kind) {
                text = quality.max(text);
            }
        }
        if protobuf > text { Self::Protobuf } else { Self::Text }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    pub(crate) fn write(self, registry: &Registry) -> Result<Vec<u8>, ExpositionError> {
        match self {
            Self::Text => {
                let mut written = String::new();
                text::encode(&mut written, registry)?;
                Ok(written.into_bytes())
            }
            Self::Protobuf => Ok(prometheus_protobuf::encode_to_vec(registry)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Form;

    /// The headers that Prometheus 3 sends if it scrapes native histograms, and if it does not.
    const NATIVE: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
                          application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    const CLASSIC: &str =
        "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1";

    #[test]
    fn protobuf_is_written_only_for_a_scraper_that_prefers_it() {
        let protobuf = |text: &str| {
            format!("application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; {text}")
        };
        for (accept, form) in [
            ("", Form::Text),
            ("*/*", Form::Text),
            ("text/html,*/*;q=0.8", Form::Text),
            (CLASSIC, Form::Text),
            (NATIVE, Form::Protobuf),
            (&protobuf("encoding=delimited"), Form::Protobuf),
            (&protobuf("encoding=text"), Form::Text),
            (&protobuf("encoding=delimited;q=0"), Form::Text),
            (&protobuf("encoding=delimited;q=no number"), Form::Text),
            (&format!("{},text/plain", protobuf("encoding=delimited;q=0.5")), Form::Text),
            ("application/vnd.google.protobuf", Form::Text),
        ] {
            assert_eq!(Form::accepted(accept), form, "{accept}");
        }
    }
}
