//! Which images are removed, and when.

use super::{
    ImageGcConfig,
    read::{Reader, Zero},
    tree::{Place, Tree},
};
use crate::model::format_duration;
use serde_json::Value as Json;
use std::time::Duration;

const HIGH: &str = "imageGCHighThresholdPercent";
const LOW: &str = "imageGCLowThresholdPercent";
const MINIMUM: &str = "imageMinimumGCAge";
const MAXIMUM: &str = "imageMaximumGCAge";

pub(super) fn settings(r: &mut Reader<'_>, nodelet: &Reader<'_>) -> ImageGcConfig {
    let default = ImageGcConfig::default();
    let any = Duration::ZERO..=Duration::MAX;
    let high = percent(r, HIGH).unwrap_or(default.high_percent);
    let low = percent(r, LOW).unwrap_or(default.low_percent);
    let minimum_age = r.duration(MINIMUM, Zero::Unset, any.clone()).unwrap_or(default.minimum_age);
    let maximum_age = r.duration(MAXIMUM, Zero::Value, any).filter(|age| !age.is_zero());
    if let Some(place) = place(r, LOW).or(place(r, HIGH)).filter(|_| low >= high) {
        let must = format!("must be less than {HIGH}, {high}");
        r.invalid(place, LOW, low, &must);
    }
    if let Some(place) = place(r, MAXIMUM).or(place(r, MINIMUM))
        && let Some(maximum) = maximum_age.filter(|maximum| *maximum <= minimum_age)
    {
        let must = format!("must be longer than {MINIMUM}, {}", format_duration(minimum_age));
        r.invalid(place, MAXIMUM, Json::from(format_duration(maximum)), &must);
    }
    let include_foreign = nodelet.bool("imageGC.includeForeign").unwrap_or(default.include_foreign);
    ImageGcConfig {
        high_percent: high,
        low_percent: low,
        minimum_age,
        maximum_age,
        include_foreign,
    }
}

fn percent(r: &mut Reader<'_>, path: &str) -> Option<u8> {
    r.int(path, Zero::Value, 0..=100).and_then(|percent| u8::try_from(percent).ok())
}

fn place<'a>(r: &Reader<'a>, path: &str) -> Option<&'a Place> {
    r.tree.get(path).map(Tree::place)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use crate::config::{ImageGcConfig, parse_and_validate};
    use std::time::Duration;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn read(text: &str) -> ImageGcConfig {
        let loaded = parse_and_validate(format!("{HEAD}{text}").as_bytes()).unwrap();
        assert!(loaded.notices.is_empty(), "{:?}", loaded.notices);
        loaded.config.images.gc
    }

    #[test]
    fn images_are_removed_as_configured() {
        assert_eq!(read(""), ImageGcConfig::default());
        assert_eq!(
            read("imageMinimumGCAge: 0s\nimageMaximumGCAge: 0s\n"),
            ImageGcConfig::default()
        );
        let text = "imageGCHighThresholdPercent: 100\nimageGCLowThresholdPercent: 0\n\
                    imageMinimumGCAge: 5m\nimageMaximumGCAge: 12h\n---\n\
                    apiVersion: nodelet.dev/v1alpha1\nkind: NodeletConfiguration\n\
                    imageGC: {includeForeign: true}\n";
        let expected = ImageGcConfig {
            high_percent: 100,
            low_percent: 0,
            minimum_age: Duration::from_secs(300),
            maximum_age: Some(Duration::from_secs(12 * 3600)),
            include_foreign: true,
        };
        assert_eq!(read(text), expected);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, problem) in [
            (
                "imageGCHighThresholdPercent: 101\n",
                "imageGCHighThresholdPercent: Invalid value: 101: must be between 0 and 100",
            ),
            (
                "imageGCLowThresholdPercent: -1\n",
                "imageGCLowThresholdPercent: Invalid value: -1: must be between 0 and 100",
            ),
            (
                "imageGCLowThresholdPercent: 85\n",
                "imageGCLowThresholdPercent: Invalid value: 85: must be less than imageGCHighThresholdPercent, 85",
            ),
            (
                "imageGCHighThresholdPercent: 0\n",
                "imageGCLowThresholdPercent: Invalid value: 80: must be less than imageGCHighThresholdPercent, 0",
            ),
            (
                "imageMaximumGCAge: 2m\n",
                "imageMaximumGCAge: Invalid value: \"2m0s\": must be longer than imageMinimumGCAge, 2m0s",
            ),
            (
                "imageMinimumGCAge: -1m\n",
                "imageMinimumGCAge: Invalid value: \"-1m\": must be a duration",
            ),
        ] {
            let error = parse_and_validate(format!("{HEAD}{text}").as_bytes()).unwrap_err();
            let told = error.to_string();
            assert!(told.contains(problem), "{text}: {told}");
            assert_eq!(error.mistakes.len(), 1, "{told}");
        }
    }
}
