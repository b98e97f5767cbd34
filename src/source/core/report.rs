//! The report about each file in the status.

use super::{
    AcceptedPod, Document, EntryLook, Identity, Listed, Listing, State, objects::Objects,
    saved::Unusable,
};
use crate::model::{FileReport, FileVerdict, Order as _, PodKey, Position, Problem};
use std::collections::BTreeMap;

const LOST: &str = "the record of the manifests accepted earlier was lost, and there are none here: \
                    nothing is removed until there are";

/// Said of a pod that a file with mistakes does not show.
const UNSHOWN: &str = "the file has mistakes and does not show this pod any more: the pod stays \
                       until they are corrected, and goes if it is not in the file then";

impl State {
    /// What is wrong with the source itself, and with what it remembers.
    pub(super) fn trouble(&self) -> Option<String> {
        let place = self.error.clone().or_else(|| self.lost.then(|| LOST.to_owned()));
        let all: Vec<String> = place.into_iter().chain(self.unusable()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// What people are told about revisions that can't be wanted.
    pub(super) fn unusable(&self) -> Option<String> {
        let mut text = String::new();
        let unusable = self.kept.iter().filter(|(_, kept)| kept.pod.is_err());
        let others = unusable.clone().count().saturating_sub(MAX_UNUSABLE);
        for (key, kept) in unusable.take(MAX_UNUSABLE) {
            if let Err(Unusable { reason, .. }) = &kept.pod {
                let reason: String = reason.chars().take(MAX_REASON).collect();
                let (location, document) = (&kept.origin().location, kept.origin().document + 1);
                text += &format!(
                    "the last good revision of {key} ({location}, document {document}) {reason}; "
                );
            }
        }
        if others > 0 {
            text += &format!("{others} more can't be used either; ");
        }
        (!text.is_empty()).then(|| {
            text + "no pod is removed until the manifest is corrected or taken away, or the pod is forgotten"
        })
    }

    pub(super) fn elsewhere(&self, home: Identity, here: Identity) -> String {
        let what = if home.single_file == here.single_file {
            "another directory than the one that had the manifests"
        } else if home.single_file {
            "a directory now, and was a file"
        } else {
            "a file now, and was a directory"
        };
        format!("{} is {what}, and has none: nothing is removed because of it", self.location)
    }
}

/// Most problems and warnings of one source that are shown and logged, over all its files.
const MAX_SHOWN: usize = 200;
/// Most revisions that can't be wanted that the source's error names.
const MAX_UNUSABLE: usize = 10;
/// How much of a reason is repeated there, in characters.
const MAX_REASON: usize = 1000;

/// Keeps the first problems of all reports, and says of each document how many are not shown.
fn shorten(reports: &mut [FileReport]) {
    let mut left = MAX_SHOWN;
    for verdict in reports.iter_mut().flat_map(|report| &mut report.verdicts) {
        let problems = match verdict {
            FileVerdict::Accepted { warnings, .. } | FileVerdict::Object { warnings, .. } => {
                warnings
            }
            FileVerdict::Rejected { problems, .. } => problems,
            FileVerdict::Skipped { .. } => continue,
        };
        let shown = problems.len().min(left);
        left -= shown;
        if problems.len() > shown {
            let others = problems.len() - shown;
            let position = problems.first().map(|first| first.position).unwrap_or_default();
            problems.truncate(shown);
            let message = format!("{others} problems are not shown: correct the others first");
            problems.push(Problem { position, path: String::new(), message });
        }
    }
}

/// One report per file that was seen, and per file that is gone and whose pods go on running.
pub(super) fn files(
    listing: &Listing,
    kept: &BTreeMap<PodKey, AcceptedPod>,
    objects: &Objects,
    error: Option<&str>,
) -> Vec<FileReport> {
    let mut reports: Vec<FileReport> = listing
        .files
        .iter()
        .map(|file| FileReport {
            location: file.location.to_string(),
            verdicts: file_verdicts(file, kept, objects),
        })
        .collect();
    for (key, kept) in kept {
        if listing.files.iter().any(|file| file.name == kept.file) {
            continue;
        }
        let message = error.unwrap_or("the file is gone").to_owned();
        let verdict = FileVerdict::Rejected {
            key: Some(key.clone()),
            object: None,
            position: Position { line: kept.origin().line, column: 0 },
            problems: vec![problem(message)],
            last_good: true,
        };
        let location = &*kept.origin().location;
        match reports.iter_mut().find(|report| report.location == location) {
            Some(report) => report.verdicts.push(verdict),
            None => {
                let location = location.to_owned();
                reports.push(FileReport { location, verdicts: vec![verdict] });
            }
        }
    }
    reports.order_by(|a, b| a.location.cmp(&b.location));
    shorten(&mut reports);
    reports
}

fn file_verdicts(
    file: &Listed,
    kept: &BTreeMap<PodKey, AcceptedPod>,
    objects: &Objects,
) -> Vec<FileVerdict> {
    let from_here = || kept.iter().filter(|(_, kept)| kept.file == file.name);
    let last_good = from_here().any(|(_, kept)| !kept.is_current());
    let whole = |problem: Problem| {
        let position = problem.position;
        let problems = vec![problem];
        vec![FileVerdict::Rejected { key: None, object: None, position, problems, last_good }]
    };
    match &file.look {
        EntryLook::Unread(problem) => whole(problem.clone()),
        EntryLook::Skipped { reason, .. } if last_good => whole(problem(reason.clone())),
        EntryLook::Skipped { reason, .. } => vec![FileVerdict::Skipped { reason: reason.clone() }],
        EntryLook::Settling if last_good => from_here()
            .map(|(key, kept)| match &kept.pod {
                Ok(_) => {
                    FileVerdict::Accepted { key: key.clone(), warnings: kept.warnings.clone() }
                }
                Err(unusable) => FileVerdict::Rejected {
                    key: Some(key.clone()),
                    object: None,
                    position: Position { line: kept.origin().line, column: 0 },
                    problems: vec![problem(format!("its last good revision {}", unusable.reason))],
                    last_good: true,
                },
            })
            .collect(),
        EntryLook::Settling => vec![FileVerdict::Skipped { reason: "being written".to_owned() }],
        EntryLook::Read(reading) if reading.is_empty() => {
            whole(problem("there is nothing in it".to_owned()))
        }
        EntryLook::Read(reading) if reading.empty_list => {
            vec![FileVerdict::Skipped { reason: "an empty list".to_owned() }]
        }
        EntryLook::Read(reading) => {
            let pods =
                reading.documents.iter().map(|document| document_verdict(file, document, kept));
            let unshown = from_here().filter(|(key, kept)| {
                let shown = |document: &Document| document.key.as_ref() == Some(*key);
                reading.broken && !kept.is_current() && !reading.documents.iter().any(shown)
            });
            let unshown = unshown.map(|(key, kept)| FileVerdict::Rejected {
                key: Some(key.clone()),
                object: None,
                position: Position { line: kept.origin().line, column: 0 },
                problems: vec![problem(UNSHOWN.to_owned())],
                last_good: true,
            });
            let verdicts = pods.chain(objects.verdicts(file)).chain(unshown);
            let mut all: Vec<FileVerdict> = verdicts.collect();
            // The first one makes room for four, and most files have one document.
            all.shrink_to_fit();
            all
        }
    }
}

fn document_verdict(
    file: &Listed,
    document: &Document,
    kept: &BTreeMap<PodKey, AcceptedPod>,
) -> FileVerdict {
    let holder = document.key.as_ref().and_then(|key| kept.get(key));
    let rejected = |problems: Vec<Problem>, last_good: bool| FileVerdict::Rejected {
        key: document.key.clone(),
        object: None,
        position: document.position,
        problems,
        last_good,
    };
    match (&document.result, holder) {
        (Ok(pod), Some(holder))
            if holder.is_current()
                && holder.file == file.name
                && holder.origin().document == pod.origin.document =>
        {
            FileVerdict::Accepted { key: pod.key.clone(), warnings: document.warnings.clone() }
        }
        (Ok(pod), Some(holder)) => {
            let origin = holder.origin();
            let state =
                if holder.is_current() { "is used" } else { "runs in its last good revision" };
            let message = format!(
                "Duplicate value: \"{}\": also written in {} line {}, which {state}: rename or remove one of them (this is {} document {})",
                pod.key,
                origin.location,
                origin.line,
                file.location,
                document.index + 1
            );
            rejected(
                vec![Problem {
                    position: document.position,
                    path: "metadata.name".to_owned(),
                    message,
                }],
                false,
            )
        }
        // Valid and not kept: only in a listing that is not believed.
        (Ok(_), None) => rejected(vec![problem("not looked at".to_owned())], false),
        (Err(problems), Some(holder)) => rejected(problems.clone(), !holder.is_current()),
        (Err(problems), None) => {
            let held = document.key.is_none()
                && kept.values().any(|kept| kept.file == file.name && !kept.is_current());
            rejected(problems.clone(), held)
        }
    }
}

fn problem(message: String) -> Problem {
    Problem { position: Position::default(), path: String::new(), message }
}
