//! What a watcher has seen of pods, and when. Times are nanoseconds since 1970.

use serde_json::Value;
use std::collections::BTreeMap;

/// What was seen of one pod, each for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// Its object.
    pub added: i64,
    /// Its node.
    pub bound: Option<i64>,
    /// Its condition Ready.
    pub ready: Option<i64>,
    /// That it is to go.
    pub deleting: Option<i64>,
    /// That its object is gone.
    pub gone: Option<i64>,
}

/// All that was seen, by the names of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sightings(pub BTreeMap<String, Sighting>);

impl Sightings {
    /// Takes in an event of a watch that came at this time.
    pub fn note(&mut self, event: &Value, at: i64) {
        let pod = &event["object"];
        let Some(name) = pod["metadata"]["name"].as_str() else { return };
        let pod_before = self.0.entry(name.to_owned());
        let seen = pod_before.or_insert(Sighting { added: at, ..Sighting::default() });
        let ready =
            |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        let conditions = pod["status"]["conditions"].as_array();
        for (is_so, place) in [
            (pod["spec"]["nodeName"].is_string(), &mut seen.bound),
            (conditions.is_some_and(|all| all.iter().any(ready)), &mut seen.ready),
            (pod["metadata"]["deletionTimestamp"].is_string(), &mut seen.deleting),
            (event["type"] == "DELETED", &mut seen.gone),
        ] {
            if is_so {
                place.get_or_insert(at);
            }
        }
    }

    /// How many pods something was seen of.
    pub fn count(&self, what: impl Fn(&Sighting) -> Option<i64>) -> usize {
        self.0.values().filter(|pod| what(pod).is_some()).count()
    }

    /// When it was last seen of a pod.
    pub fn last(&self, what: impl Fn(&Sighting) -> Option<i64>) -> Option<i64> {
        self.0.values().filter_map(what).max()
    }

    /// Seconds that each pod took from one sight to another; pods that lack either are left out.
    pub fn times(
        &self,
        from: impl Fn(&str, &Sighting) -> Option<i64>,
        to: impl Fn(&Sighting) -> Option<i64>,
    ) -> Vec<f64> {
        let pods = self.0.iter();
        let took = pods.filter_map(|(name, pod)| Some(to(pod)? - from(name, pod)?));
        #[expect(clippy::cast_precision_loss, reason = "minutes, in nanoseconds")]
        took.map(|nanoseconds| nanoseconds as f64 / 1e9).collect()
    }
}

/// The percentile by the nearest rank: the smallest value that so many percent do not exceed.
/// Infinite when there is no value.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::INFINITY)
}

/// A path without the namespace and the names of objects: one for all requests of a kind.
pub fn kind_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    // `/api/VERSION` or `/apis/GROUP/VERSION`
    let root = match parts.first() {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        Some(_) | None => return path.to_owned(),
    };
    let rest = parts.get(root..).unwrap_or_default();
    let is_in_namespace = rest.len() > 2 && rest[0] == "namespaces";
    let rest = if is_in_namespace { &rest[2..] } else { rest };
    let name = |(place, part): (usize, &&str)| if place == 1 { "*" } else { *part }.to_owned();
    rest.iter().enumerate().map(name).collect::<Vec<String>>().join("/")
}
