use super::*;
use std::cell::{Cell, RefCell};

fn order() -> Vec<Removable> {
    let image = |id: &str, size| {
        let tags = vec![format!("name-{id}")];
        let image = Present { id: id.to_owned(), tags, size, ..Present::default() };
        Removable { image, idle: Duration::ZERO }
    };
    vec![image("a", 100), image("stuck", 100), image("b", 100), image("c", 100)]
}

/// Removes until so much is free; half of each image's size becomes free. Which were removed.
async fn removed(wanted: Option<u64>, measurable: bool) -> (Vec<String>, Freed) {
    removed_unless(|_| false, wanted, measurable).await
}

/// The same, with images that manifests name by now.
async fn removed_unless(
    is_named: impl Fn(&str) -> bool,
    wanted: Option<u64>,
    measurable: bool,
) -> (Vec<String>, Freed) {
    let (free, gone) = (Cell::new(1000_u64), RefCell::new(Vec::new()));
    let remove = |id: String| {
        std::future::ready(match id.as_str() {
            "stuck" => Err(CriError::DeadlineExceeded { call: "RemoveImage", seconds: 1 }),
            _ => {
                gone.borrow_mut().push(id);
                free.set(free.get() + 50);
                Ok(())
            }
        })
    };
    let available = || std::future::ready(measurable.then_some(free.get()));
    let is_named = |image: &Present| is_named(&image.id);
    let freed = remove_by(remove, &order(), wanted, is_named, available).await;
    (gone.into_inner(), freed)
}

#[tokio::test]
async fn images_are_removed_until_enough_is_free() {
    let (gone, freed) = removed(Some(60), true).await;
    assert_eq!(gone, ["a", "b"], "and not more, although one could not be removed");
    assert_eq!((freed.expected, freed.measured, freed.bytes()), (200, Some(100), 100));
    assert_eq!(freed.refused.len(), 1);
    assert!(freed.refused[0].0 == "name-stuck" && freed.refused[0].1.contains("RemoveImage"));
    let (gone, _) = removed(Some(60), false).await;
    assert_eq!(gone, ["a"], "by its size, where nothing can be measured");
    let (gone, freed) = removed(None, true).await;
    assert_eq!(gone, ["a", "b", "c"]);
    assert_eq!(freed.measured, Some(150));
    let (gone, freed) = removed(Some(0), true).await;
    assert!(gone.is_empty() && freed == Freed::default());
}

#[tokio::test]
async fn an_image_that_a_manifest_names_meanwhile_stays() {
    let (gone, freed) = removed_unless(|id| id == "a", Some(60), true).await;
    assert_eq!(gone, ["b", "c"], "the next ones make the room");
    assert_eq!(freed.refused.len(), 1, "only the one that could not be removed");
}

#[test]
fn images_that_a_container_mounts_are_in_use() {
    let mut listed = v1::Container { image_ref: "sha256:own".to_owned(), ..Default::default() };
    let mounted = "sha256:a,sha256:b".to_owned();
    listed.annotations.insert(annotation::IMAGE_VOLUMES.to_owned(), mounted);
    let (mut noted, mut expected) = (InUse::default(), InUse::default());
    note_images(&mut noted, listed);
    for image in ["sha256:own", "sha256:a", "sha256:b"] {
        expected.by_container(image);
    }
    assert_eq!(noted, expected);
}
