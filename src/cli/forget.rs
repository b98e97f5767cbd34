//! `nodelet forget POD`: drops the last good revision of a manifest that has become invalid or is
//! gone, so that its pod is stopped.

use super::{
    EXIT_FAILURE, EXIT_NO_AGENT,
    args::ForgetArgs,
    ask::AskError,
    status::{Wanted, reach},
};
use crate::{
    model::{FileVerdict, PodKey},
    serve::{ForgetAnswer, StatusDocument},
};
use std::process::ExitCode;

/// Asks the agent, and says what came of it.
pub(super) async fn run(args: ForgetArgs) -> Result<ExitCode, AskError> {
    let wanted = Wanted::new(&args.pod, args.namespace.namespace.as_deref())?;
    let Some((client, document)) = reach(&args.agent).await? else {
        return Ok(ExitCode::from(EXIT_NO_AGENT));
    };
    let key = wanted.select(&document.node.name, candidates(&document))?;
    let answer = client.forget(key).await?;
    let (code, text) = told(key, &answer);
    super::show(&format!("{text}\n"))?;
    Ok(code)
}

/// Pods that run, and pods that a manifest names.
fn candidates(document: &StatusDocument) -> impl Iterator<Item = &PodKey> {
    let verdicts = document.node.sources.iter().flat_map(|source| &source.files);
    let named = verdicts.flat_map(|file| &file.verdicts).filter_map(|verdict| match verdict {
        FileVerdict::Accepted { key, .. } => Some(key),
        FileVerdict::Rejected { key, .. } => key.as_ref(),
        FileVerdict::Object { .. } | FileVerdict::Skipped { .. } => None,
    });
    document.pods.iter().map(|view| &view.key).chain(named)
}

fn told(key: &PodKey, answer: &ForgetAnswer) -> (ExitCode, String) {
    match answer {
        ForgetAnswer::Forgotten { location, waits } => {
            let stop = if *waits {
                "the pod is stopped when all other manifests are known: see `nodelet status`"
            } else {
                "the pod is being stopped"
            };
            let text =
                format!("The last good revision of {key} ({location}) is forgotten; {stop}.");
            (ExitCode::SUCCESS, text)
        }
        ForgetAnswer::NotKept { location } => (
            ExitCode::from(EXIT_FAILURE),
            format!(
                "{key} is not kept from an earlier revision: its manifest {location} is valid. To stop \
                 the pod, remove the manifest."
            ),
        ),
        ForgetAnswer::Unknown => (
            ExitCode::from(EXIT_FAILURE),
            format!("No manifest is known for {key}, so nothing is kept."),
        ),
        ForgetAnswer::Failed { message } => {
            (ExitCode::from(EXIT_FAILURE), format!("{key} is not forgotten: {message}."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_happened() {
        let key = PodKey::new("default", "web-n1");
        let location = || "/m/web.yaml".to_owned();
        for (answer, worked, part) in [
            (
                ForgetAnswer::Forgotten { location: location(), waits: false },
                true,
                "is being stopped",
            ),
            (
                ForgetAnswer::Forgotten { location: location(), waits: true },
                true,
                "stopped when all other manifests are known",
            ),
            (ForgetAnswer::NotKept { location: location() }, false, "remove the manifest"),
            (ForgetAnswer::Unknown, false, "No manifest is known"),
            (ForgetAnswer::Failed { message: "x".into() }, false, "not forgotten: x."),
        ] {
            let (code, text) = told(&key, &answer);
            assert_eq!(code == ExitCode::SUCCESS, worked, "{text}");
            assert!(text.contains(part) && text.contains("default/web-n1"), "{text}");
        }
    }
}
