//! Finds the model of a GPU by the product name and the memory that NVML reports.

use super::{GpuModel, MODELS};
use crate::units::MemoryMib;

/// The largest difference between a board's memory and its model's, in percent. It covers ECC, which takes up to 7 %
/// where it can be switched.
const MEMORY_PERCENT: u64 = 10;

/// The characters between the words of a product name.
const SEPARATORS: [char; 2] = [' ', '-'];

/// The model of a GPU that NVML calls `product`. It is the model with the longest part of that name. Among several, it
/// is the one with the nearest memory, because a `GH200` has 96 or 144 GB. `None` if no model is near.
#[must_use]
pub fn by_product(product: &str, memory: MemoryMib) -> Option<&'static GpuModel> {
    let near = |m: &&GpuModel| distance(m, memory) * 100 <= m.memory.0 * MEMORY_PERCENT;
    let words: Vec<&str> = product.split(SEPARATORS).collect();
    let named = MODELS.iter().filter(near).filter_map(|m| longest_part(m, &words).map(|length| (length, m)));
    named.min_by_key(|(length, m)| (std::cmp::Reverse(*length), distance(m, memory))).map(|(_, model)| model)
}

fn distance(model: &GpuModel, memory: MemoryMib) -> u64 {
    model.memory.0.abs_diff(memory.0)
}

/// The length of the longest of the model's parts that a product name contains in whole words.
fn longest_part(model: &GpuModel, words: &[&str]) -> Option<usize> {
    let begins = |from: usize, part: &str| {
        let mut rest = words[from..].iter();
        part.split(SEPARATORS).all(|word| rest.next() == Some(&word))
    };
    let has = |part: &&&str| (0..words.len()).any(|from| begins(from, part));
    model.products.iter().filter(has).map(|part| part.len()).max()
}

/// The short name of a GPU that NVML calls `product`. For a known model it is the catalog's. Otherwise it is the
/// product name without its brand and with dashes for other characters, so that it can be a label's value.
#[must_use]
pub fn short_name(product: &str, memory: MemoryMib) -> String {
    by_product(product, memory).map_or_else(
        || {
            let plain = product.trim_start_matches("NVIDIA ").trim_start_matches("Tesla ");
            plain.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
        },
        |m| m.name.to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_have_their_short_names() {
        for (product, memory, name) in [
            ("NVIDIA H100 80GB HBM3", 81_559, "H100-80GB"),
            ("NVIDIA H100 PCIe", 81_559, "H100-80GB"),
            ("NVIDIA H100 NVL", 95_830, "H100-94GB"),
            ("NVIDIA H100", 97_871, "H100-96GB"),
            ("NVIDIA H200", 143_771, "H200-141GB"),
            ("NVIDIA H200 NVL", 143_771, "H200-141GB"),
            ("NVIDIA H20", 97_871, "H20-96GB"),
            ("NVIDIA H20", 143_771, "H20-141GB"),
            ("NVIDIA H20-3e", 143_771, "H20-141GB"),
            ("NVIDIA GH200 480GB", 97_871, "GH200-96GB"),
            ("NVIDIA GH200 480GB", 146_831, "GH200-144GB"),
            ("NVIDIA GH200 144G HBM3e", 146_831, "GH200-144GB"),
            ("NVIDIA B200", 183_359, "B200-180GB"),
            ("NVIDIA GB200", 189_471, "GB200-186GB"),
            ("NVIDIA B300 SXM6 AC", 275_040, "B300-269GB"),
            ("NVIDIA GB300", 284_208, "GB300-278GB"),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_887, "RTX-PRO-6000-96GB"),
            ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97_887, "RTX-PRO-6000-96GB"),
            ("NVIDIA A100-SXM4-40GB", 40_960, "A100-40GB"),
            ("NVIDIA A100-PCIE-40GB", 40_960, "A100-40GB"),
            ("NVIDIA A100-SXM4-80GB", 81_920, "A100-80GB"),
            ("NVIDIA A100 80GB PCIe", 81_251, "A100-80GB"),
            ("NVIDIA A30", 24_576, "A30-24GB"),
            ("NVIDIA L40S", 46_068, "L40S-48GB"),
            ("NVIDIA L40S", 49_140, "L40S-48GB"),
            ("NVIDIA L4", 23_034, "L4-24GB"),
            ("Tesla T4", 15_360, "T4-16GB"),
            ("T4", 15_360, "T4-16GB"),
        ] {
            assert_eq!(short_name(product, MemoryMib(memory)), name, "{product} {memory}");
        }
    }

    #[test]
    fn a_gpu_that_no_model_describes_keeps_its_product_name() {
        for (product, memory, name) in [
            ("NVIDIA GeForce RTX 4090", 24_564, "GeForce-RTX-4090"),
            ("NVIDIA A100-SXM-64GB", 65_536, "A100-SXM-64GB"),
            ("NVIDIA H100 64GB HBM2", 65_536, "H100-64GB-HBM2"),
            ("NVIDIA H100-10C", 10_240, "H100-10C"),
        ] {
            assert_eq!(short_name(product, MemoryMib(memory)), name);
        }
    }

    #[test]
    fn memory_differs_from_the_models_by_a_tenth_at_most() {
        let is_known = |memory| by_product("Tesla T4", MemoryMib(memory)).is_some();
        assert!(is_known(15_360 + 1_536) && !is_known(15_360 + 1_537));
        assert!(is_known(15_360 - 1_536) && !is_known(15_360 - 1_537));
    }

    #[test]
    fn the_longest_part_of_a_products_name_counts() {
        let model = by_product("A100-SXM4-40GB", MemoryMib(40_960)).unwrap();
        assert_eq!(longest_part(model, &["NVIDIA", "A100", "SXM4", "40GB"]), Some("A100 SXM4 40GB".len()));
    }
}
