//! What became of manifests, and what is found about them.

use super::text::one_line;
use crate::model::{FileReport, FileVerdict, PodKey, PodUpdate, Problem, SourceView};
use std::path::Path;

/// The file, the pod or object, and what became of it. `update` is asked about accepted pods.
pub(crate) fn verdict_row<'a>(
    source: &SourceView,
    file: &FileReport,
    verdict: &FileVerdict,
    update: impl Fn(&PodKey) -> Option<&'a PodUpdate>,
) -> [String; 3] {
    let inside = Path::new(&file.location).strip_prefix(&source.location).ok();
    let name = match inside.map(|path| path.display().to_string()) {
        Some(name) if !name.is_empty() => name,
        Some(_) | None => file.location.clone(),
    };
    let (key, said) = match verdict {
        FileVerdict::Accepted { key, .. } => {
            let said = match update(key) {
                Some(PodUpdate::Waits(_)) => "accepted, WAITS: the old revision runs on",
                Some(PodUpdate::RolledBack(_)) => "ROLLED BACK: the previous revision runs",
                None => "accepted",
            };
            (key.to_string(), said.to_owned())
        }
        FileVerdict::Object { key, .. } => (key.to_string(), "accepted".to_owned()),
        FileVerdict::Rejected { key, object, last_good, .. } => {
            let said = match (last_good, object) {
                (true, Some(_)) => "REJECTED, its last good data stays in use",
                (true, None) => "REJECTED, its last good revision keeps running",
                (false, _) => "REJECTED",
            };
            let pod = key.as_ref().map(ToString::to_string);
            let name = pod.or_else(|| object.as_ref().map(ToString::to_string));
            (name.unwrap_or_else(|| "-".to_owned()), said.to_owned())
        }
        FileVerdict::Skipped { reason } => ("-".to_owned(), format!("ignored: {reason}")),
    };
    [one_line(&name), key, said]
}

/// The findings about a document, one line each.
pub(crate) fn findings(file: &FileReport, verdict: &FileVerdict) -> Vec<String> {
    let line = |problem: &Problem, what: &str| finding(&file.location, problem, what);
    match verdict {
        FileVerdict::Accepted { warnings, .. } | FileVerdict::Object { warnings, .. } => {
            warnings.iter().map(|problem| line(problem, "warning: ")).collect()
        }
        FileVerdict::Rejected { problems, .. } => {
            problems.iter().map(|problem| line(problem, "")).collect()
        }
        FileVerdict::Skipped { .. } => Vec::new(),
    }
}

/// `FILE:LINE:COLUMN: path: message`, which editors and terminals turn into a link.
pub(crate) fn finding(location: &str, problem: &Problem, what: &str) -> String {
    let Problem { position, path, message } = problem;
    let place = if position.line > 0 {
        format!("{location}:{}:{}", position.line, position.column)
    } else {
        location.to_owned()
    };
    let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
    one_line(&format!("{place}: {what}{path}{message}"))
}
