//! `nodelet status -w`: the rows of pods, and a row again whenever it changes, as `kubectl get -w`
//! shows it.

use super::{StatusError, pods, text::Columns};
use crate::{
    cli::show,
    clock,
    model::{PodKey, PodView},
    presentation::reason_beside,
    serve::{Client, FollowLine},
};
use jiff::Timestamp;
use std::{collections::BTreeMap, process::ExitCode};

/// The status of a pod that is no longer there.
const GONE: &str = "Gone";

/// The table so far.
#[derive(Default)]
pub(super) struct Watch<'a> {
    /// Only this pod.
    pod: Option<&'a PodKey>,
    /// Only pods of this namespace.
    namespace: Option<&'a str>,
    wide: bool,
    columns: Columns,
    /// The last row of each pod, without ages.
    told: BTreeMap<PodKey, Vec<String>>,
    /// The rows that there were before, which make one table with the header.
    first: Vec<Vec<String>>,
    has_begun: bool,
}

impl<'a> Watch<'a> {
    /// Nothing is printed yet. Without a pod and a namespace it is about all pods.
    pub(super) fn new(pod: Option<&'a PodKey>, namespace: Option<&'a str>, wide: bool) -> Self {
        Self { pod, namespace, wide, ..Self::default() }
    }

    /// Prints rows until the agent ends.
    pub(super) async fn run(mut self, client: &Client) -> Result<ExitCode, StatusError> {
        let mut lines = client.follow("/status?watch=true").await?;
        loop {
            let text = match lines.next().await? {
                FollowLine::Pod { view, last_good, gone } => {
                    self.pod(&view, last_good, gone, clock::now().wall)
                }
                FollowLine::Begun => self.begun(),
                FollowLine::Event(_) | FollowLine::Lost => continue,
            };
            show(&text)?;
        }
    }

    /// What is printed when a pod has come, changed or gone.
    fn pod(&mut self, view: &PodView, last_good: bool, gone: bool, now: Timestamp) -> String {
        let is_other = self.pod.is_some_and(|pod| *pod != view.key)
            || self.namespace.is_some_and(|namespace| *view.key.namespace != *namespace);
        if is_other {
            return String::new();
        }
        let row = |now| {
            let mut row = pods::row(view, Some(reason_beside(view, last_good)), now, self.wide);
            if gone {
                GONE.clone_into(&mut row[pods::STATUS]);
            }
            row
        };
        // Ages grow all the time. A row in which nothing else has changed is not printed again.
        let ageless = row(Timestamp::UNIX_EPOCH);
        if self.told.get(&view.key) == Some(&ageless) {
            return String::new();
        }
        let row = row(now);
        if gone {
            self.told.remove(&view.key);
        } else {
            self.told.insert(view.key.clone(), ageless);
        }
        if self.has_begun {
            return self.columns.lines(&[row]);
        }
        self.first.push(row);
        String::new()
    }

    /// What is printed when all pods that there were before have come.
    fn begun(&mut self) -> String {
        self.has_begun = true;
        let mut rows = vec![pods::header(self.wide, true)];
        rows.append(&mut self.first);
        self.columns.lines(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(name: &str, phase: &str, waiting: Option<&str>) -> PodView {
        let view = serde_json::json!({
            "key": {"namespace": "default", "name": name}, "uid": "u1", "pod": null,
            "status": {"phase": phase, "startTime": "2026-11-20T10:00:00Z"},
            "origin": null, "terminating": false, "hung": null, "waiting": waiting,
        });
        serde_json::from_value(view).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        let started: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        started + jiff::SignedDuration::from_secs(second)
    }

    #[test]
    fn a_row_is_printed_again_when_more_than_its_age_changes() {
        let mut watch = Watch::default();
        let pending = view("web-n1", "Pending", None);
        assert_eq!(watch.pod(&pending, false, false, at(1)), "");
        assert_eq!(
            watch.begun(),
            "\
NAMESPACE   NAME     READY   STATUS    RESTARTS   AGE   IP       REASON
default     web-n1   0/0     Pending   0          1s    <none>
"
        );
        assert_eq!(watch.pod(&pending, false, false, at(2)), "");
        let waits = view("web-n1", "Pending", Some("for db"));
        assert_eq!(
            watch.pod(&waits, false, false, at(3)),
            "default     web-n1   0/0     Pending   0          3s    <none>   for db\n"
        );
        let running = view("web-n1", "Running", None);
        assert_eq!(
            watch.pod(&running, false, false, at(4)),
            "default     web-n1   0/0     Running   0          4s    <none>\n"
        );
        assert!(watch.pod(&running, true, false, at(5)).ends_with("the manifest is invalid now\n"));
        assert_eq!(watch.pod(&running, true, false, at(6)), "");
        assert!(watch.pod(&running, false, true, at(7)).contains("   Gone      0          7s "));
        assert!(watch.pod(&running, false, false, at(8)).contains(" Running "), "it came back");
    }

    #[test]
    fn rows_of_other_pods_are_left_out() {
        let (web, db) = (view("web-n1", "Running", None), view("db-n1", "Running", None));
        let mut one = Watch { pod: Some(&web.key), has_begun: true, ..Watch::default() };
        assert_eq!(one.pod(&db, false, false, at(1)), "");
        assert!(one.pod(&web, false, false, at(1)).contains("web-n1"));
        let mut shop = Watch { namespace: Some("shop"), has_begun: true, ..Watch::default() };
        assert_eq!(shop.pod(&web, false, false, at(1)), "");
    }
}
