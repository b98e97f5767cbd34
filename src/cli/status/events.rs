//! `nodelet events [POD]`: what has happened, as `kubectl get events` shows it.

use super::{
    SelectError, Wanted,
    describe::event_age,
    reach,
    text::{self, Columns},
};
use crate::{
    cli::{
        EXIT_NO_AGENT,
        args::{EventOutput, EventsArgs, UsageError},
        complain, show,
    },
    clock,
    model::{PodKey, k8s},
    serve::{Client, ClientError, FollowLine, StatusDocument},
};
use jiff::Timestamp;
use serde_json::json;
use std::{io, process::ExitCode};
use thiserror::Error;

/// Why events can't be shown.
#[derive(Debug, Error)]
pub(in crate::cli) enum EventsError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("wrong command line")]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("can't write an event as JSON")]
    Json(#[from] serde_json::Error),
    #[error("can't write to standard output")]
    Write(#[from] io::Error),
}

pub(in crate::cli) async fn run(args: EventsArgs) -> Result<ExitCode, EventsError> {
    // A wrong name is told also when no agent answers.
    if let Some(pod) = &args.pod {
        Wanted::new(pod, args.namespace.namespace.as_deref())?;
    }
    let Some((client, document)) = reach(&args.agent).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let shown = Shown::new(&document, &args)?;
    if args.follow {
        return follow(&client, &shown, args.output).await;
    }
    show(&render(&document, &shown, args.output, clock::now().wall)?)?;
    Ok(ExitCode::SUCCESS)
}

/// What is printed of the events that there are.
fn render(
    document: &StatusDocument,
    shown: &Shown,
    output: EventOutput,
    now: Timestamp,
) -> Result<String, serde_json::Error> {
    let events: Vec<&k8s::Event> = document.events.iter().filter(|e| shown.has(e)).collect();
    Ok(match output {
        EventOutput::Table if events.is_empty() => "No events.\n".to_owned(),
        EventOutput::Table => {
            let rows = events.into_iter().map(|event| shown.row(event, now));
            text::table(&std::iter::once(shown.header()).chain(rows).collect::<Vec<_>>())
        }
        EventOutput::Json => {
            let list =
                json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": events});
            serde_json::to_string_pretty(&list)? + "\n"
        }
    })
}

/// Prints events until the agent ends.
async fn follow(
    client: &Client,
    shown: &Shown,
    output: EventOutput,
) -> Result<ExitCode, EventsError> {
    let mut lines = client.follow("/events?watch=true").await?;
    let mut printer = Printer::new(shown, output);
    loop {
        let text = match lines.next().await? {
            FollowLine::Event(event) => printer.event(&event, clock::now().wall)?,
            FollowLine::Begun => printer.begun(),
            FollowLine::Lost => {
                complain("nodelet: some events are missing here: there were too many");
                continue;
            }
            FollowLine::Pod { .. } => continue,
        };
        show(&text)?;
    }
}

/// Makes text of the lines that a follower receives.
struct Printer<'a> {
    shown: &'a Shown,
    output: EventOutput,
    columns: Columns,
    /// The events that there were before, which make one table; `None` after them.
    rows: Option<Vec<Vec<String>>>,
}

impl<'a> Printer<'a> {
    fn new(shown: &'a Shown, output: EventOutput) -> Self {
        Self { shown, output, columns: Columns::default(), rows: Some(vec![shown.header()]) }
    }

    /// What is printed for an event.
    fn event(&mut self, event: &k8s::Event, now: Timestamp) -> Result<String, serde_json::Error> {
        if !self.shown.has(event) {
            return Ok(String::new());
        }
        let row = self.shown.row(event, now);
        Ok(match (self.output, &mut self.rows) {
            (EventOutput::Json, _) => serde_json::to_string(event)? + "\n",
            (EventOutput::Table, None) => self.columns.lines(&[row]),
            (EventOutput::Table, Some(rows)) => {
                rows.push(row);
                String::new()
            }
        })
    }

    /// What is printed when all events that there were before have come.
    fn begun(&mut self) -> String {
        match (self.output, self.rows.take()) {
            (EventOutput::Table, Some(rows)) => self.columns.lines(&rows),
            (EventOutput::Table | EventOutput::Json, _) => String::new(),
        }
    }
}

/// Which events are shown.
struct Shown {
    pod: Option<PodKey>,
    namespace: Option<String>,
}

impl Shown {
    /// # Errors
    /// The argument names no pod.
    fn new(document: &StatusDocument, args: &EventsArgs) -> Result<Self, EventsError> {
        let namespace = args.namespace.namespace.clone();
        let Some(pod) = &args.pod else { return Ok(Self { pod: None, namespace }) };
        // A pod may be gone, and its events still there.
        let of_events = document.events.iter().filter_map(|event| {
            let object = &event.involved_object;
            let is_pod = object.kind.as_deref() == Some("Pod");
            let name = object.name.as_deref().filter(|_| is_pod)?;
            Some(PodKey::new(object.namespace.as_deref()?, name))
        });
        let pods: Vec<PodKey> =
            document.pods.iter().map(|view| view.key.clone()).chain(of_events).collect();
        let wanted = Wanted::new(pod, namespace.as_deref())?;
        let pod = wanted.select(&document.node.name, &pods)?.clone();
        Ok(Self { pod: Some(pod), namespace: None })
    }

    fn has(&self, event: &k8s::Event) -> bool {
        let object = &event.involved_object;
        let namespace = object.namespace.as_deref();
        if let Some(pod) = &self.pod {
            return object.kind.as_deref() == Some("Pod")
                && namespace == Some(&*pod.namespace)
                && object.name.as_deref() == Some(&*pod.name);
        }
        self.namespace.is_none() || self.namespace.as_deref() == namespace
    }

    /// Only a list of several namespaces has a column for them.
    fn has_namespaces(&self) -> bool {
        self.pod.is_none() && self.namespace.is_none()
    }

    fn header(&self) -> Vec<String> {
        let first = self.has_namespaces().then_some("NAMESPACE");
        let names = first.into_iter().chain(["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
        names.map(str::to_owned).collect()
    }

    fn row(&self, event: &k8s::Event, now: Timestamp) -> Vec<String> {
        let text = |text: &Option<String>| text::one_line(text.as_deref().unwrap_or_default());
        let object = &event.involved_object;
        let mut row = Vec::new();
        if self.has_namespaces() {
            row.push(text(&object.namespace));
        }
        let kind = text(&object.kind).to_lowercase();
        row.extend([
            event_age(event, now),
            text(&event.type_),
            text(&event.reason),
            format!("{kind}/{}", text(&object.name)),
            text(&event.message),
        ]);
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, namespace: Option<&str>, name: &str) -> k8s::Event {
        let event = json!({
            "metadata": {}, "reason": "Killing", "type": "Normal", "message": "Stopping\ncontainer",
            "involvedObject": {"kind": kind, "namespace": namespace, "name": name},
            "count": 3, "firstTimestamp": "2026-11-20T09:55:00Z",
            "lastTimestamp": "2026-11-20T09:59:00Z",
        });
        serde_json::from_value(event).unwrap()
    }

    const ALL: Shown = Shown { pod: None, namespace: None };

    fn now() -> Timestamp {
        "2026-11-20T10:00:00Z".parse().unwrap()
    }

    #[test]
    fn followed_events_continue_the_table() {
        let shop = Shown { pod: None, namespace: Some("shop".to_owned()) };
        let mut printer = Printer::new(&shop, EventOutput::Table);
        let web = event("Pod", Some("shop"), "web-n1");
        assert_eq!(printer.event(&web, now()).unwrap(), "");
        assert_eq!(printer.event(&event("Node", None, "n1"), now()).unwrap(), "");
        assert_eq!(
            printer.begun(),
            "\
LAST SEEN          TYPE     REASON    OBJECT       MESSAGE
60s (x3 over 5m)   Normal   Killing   pod/web-n1   Stopping container
"
        );
        assert_eq!(printer.event(&event("Node", None, "n1"), now()).unwrap(), "");
        assert_eq!(
            printer.event(&web, now()).unwrap(),
            "60s (x3 over 5m)   Normal   Killing   pod/web-n1   Stopping container\n"
        );
    }

    #[test]
    fn events_are_objects_for_programs() {
        let web = event("Pod", Some("shop"), "web-n1");
        let mut printer = Printer::new(&ALL, EventOutput::Json);
        let line = printer.event(&web, now()).unwrap();
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
        assert_eq!(serde_json::from_str::<k8s::Event>(&line).unwrap(), web);
        assert_eq!(printer.begun(), "");
        let document = StatusDocument { events: vec![web], ..StatusDocument::default() };
        let list = render(&document, &ALL, EventOutput::Json, now()).unwrap();
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        assert_eq!(list["items"][0]["kind"], "Event");
        let none = StatusDocument::default();
        assert_eq!(render(&none, &ALL, EventOutput::Table, now()).unwrap(), "No events.\n");
    }

    #[test]
    fn events_read_like_kubectls() {
        let web = event("Pod", Some("shop"), "web-n1");
        let events = vec![web.clone(), event("Node", None, "n1")];
        let document = StatusDocument { events, ..StatusDocument::default() };
        assert_eq!(
            render(&document, &ALL, EventOutput::Table, now()).unwrap(),
            "\
NAMESPACE   LAST SEEN          TYPE     REASON    OBJECT       MESSAGE
shop        60s (x3 over 5m)   Normal   Killing   pod/web-n1   Stopping container
            60s (x3 over 5m)   Normal   Killing   node/n1      Stopping container
"
        );
        let one = Shown { pod: Some(PodKey::new("shop", "web-n1")), namespace: None };
        assert_eq!(one.header().first().map(String::as_str), Some("LAST SEEN"));
        assert!(one.has(&web) && !one.has(&event("Pod", Some("default"), "web-n1")));
        let shop = Shown { pod: None, namespace: Some("shop".to_owned()) };
        assert!(shop.has(&web) && !shop.has(&event("Node", None, "n1")));
    }

    #[test]
    fn the_events_of_a_pod_that_is_gone_are_found_by_its_name() {
        let document = StatusDocument {
            node: crate::model::NodeView { name: "n1".into(), ..Default::default() },
            events: vec![event("Pod", Some("shop"), "web-n1")],
            ..StatusDocument::default()
        };
        let args = |pod: &str| EventsArgs {
            pod: Some(pod.to_owned()),
            namespace: crate::cli::args::NamespaceArgs { namespace: None },
            follow: false,
            output: EventOutput::Table,
            agent: crate::cli::args::AgentArgs { run_dir: "/run/nodelet".into() },
        };
        let shown = Shown::new(&document, &args("web")).unwrap();
        assert_eq!(shown.pod, Some(PodKey::new("shop", "web-n1")));
        assert!(Shown::new(&document, &args("db")).is_err());
    }
}
