//! What is remembered, and for how long.

use crate::{
    model::{Now, PodUid},
    plan::{Failure, Outcome, PodMemory, Step},
};
use std::time::Duration;

fn uid() -> PodUid {
    "a".into()
}

fn at(seconds: u64) -> Now {
    Now { boot: Duration::from_secs(seconds), wall: jiff::Timestamp::UNIX_EPOCH }
}

fn image_failed(container: &str, image: &str, pull_tried: bool) -> Outcome {
    Outcome::Failed(Failure {
        uid: uid(),
        step: Step::Image { container: container.into(), image: image.into(), pull_tried },
        reason: if pull_tried { "ErrImagePull" } else { "InvalidImageName" }.to_owned(),
        message: "no".to_owned(),
        taken: None,
        left: None,
    })
}

/// The images with a back-off.
fn images(memory: &PodMemory) -> Vec<&str> {
    memory.of(&uid()).images.keys().map(|image| &**image).collect()
}

#[test]
fn few_images_of_earlier_edits_keep_their_back_offs() {
    let mut memory = PodMemory::default();
    memory.record(&image_failed("side", "web:10", true), at(1000));
    for n in 10..100 {
        memory.record(&image_failed("web", &format!("web:{n}"), true), at(1000 + n));
    }
    // Another container has failed with the first one as well.
    assert_eq!(images(&memory), ["web:10", "web:95", "web:96", "web:97", "web:98", "web:99"]);
    let failure = memory.of(&uid()).container("web").failure.as_ref().unwrap();
    let earlier: Vec<&str> = failure.earlier_images.iter().map(|image| &**image).collect();
    assert_eq!(earlier, ["web:95", "web:96", "web:97", "web:98"]);
}

#[test]
fn back_offs_of_earlier_images_are_forgotten_in_time() {
    let mut memory = PodMemory::default();
    memory.record(&image_failed("web", "web:1", true), at(1000));
    memory.record(&image_failed("web", "web:2", true), at(1500));
    assert_eq!(images(&memory), ["web:1", "web:2"]);
    memory.record(&image_failed("web", "web:2", true), at(1601));
    assert_eq!(images(&memory), ["web:2"]);
}

#[test]
fn names_that_are_invalid_do_not_pile_up() {
    let mut memory = PodMemory::default();
    for n in 0..9 {
        memory.record(&image_failed("web", &format!("WEB:{n}"), false), at(1000 + n));
    }
    let failure = memory.of(&uid()).container("web").failure.as_ref().unwrap();
    assert!(failure.earlier_images.is_empty() && images(&memory).is_empty());
}
