//! The field table against k8s-openapi's types, by watching what its `Deserialize` asks for.

use super::POD;
use crate::{
    document::{Field, Support, Type},
    model::k8s,
    podspec::unsupported,
};
use serde::de::{
    self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
    value::{Error, StrDeserializer},
};
use serde_json::json;
use std::collections::BTreeSet;

/// Reads a Pod out of nothing: every field is there once, every list has one item. On the way it
/// compares what is asked for with the table.
struct Probe<'a> {
    path: String,
    /// What the table says; `None` below a field that it does not look into.
    ty: Option<&'static Type>,
    found: &'a mut Vec<String>,
    seen: &'a mut usize,
}

impl Probe<'_> {
    fn expect(&mut self, what: &str, fits: impl Fn(&Type) -> bool) {
        if let Some(ty) = self.ty
            && !fits(ty)
        {
            self.found.push(format!("{}: the table says {ty:.30?}, it is {what}", self.path));
        }
    }

    /// `Any` is looked into no further.
    fn opaque(&self) -> bool {
        matches!(self.ty, None | Some(Type::Any))
    }
}

macro_rules! scalars {
    ($($method:ident $visit:ident $value:expr, $what:literal, $pattern:pat,)*) => {
        $(fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
            self.expect($what, |ty| matches!(ty, $pattern | Type::Any));
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    scalars! {
        deserialize_bool visit_bool true, "a bool", Type::Bool,
        deserialize_i32 visit_i32 1, "an i32", Type::Int32,
        deserialize_i64 visit_i64 1, "an i64", Type::Int64,
        deserialize_f64 visit_f64 1.0, "a float", Type::Float,
        deserialize_any visit_i64 1, "an int or a string", Type::IntOrString | Type::Quantity,
    }

    fn deserialize_string<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.expect("text", |ty| {
            matches!(ty, Type::String | Type::Quantity | Type::Time | Type::Any)
        });
        visitor.visit_str(match self.path.as_str() {
            "apiVersion" => "v1",
            "kind" => "Pod",
            _ => "2026-01-01T00:00:00Z",
        })
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name {
            "Quantity" => self.expect("a Quantity", |ty| matches!(ty, Type::Quantity)),
            "Time" => self.expect("a Time", |ty| matches!(ty, Type::Time)),
            "IntOrString" => self.expect("an IntOrString", |ty| matches!(ty, Type::IntOrString)),
            _ => {}
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.expect("a list", |ty| matches!(ty, Type::List(_) | Type::Any));
        if self.path.matches('[').count() > 8 {
            return visitor.visit_seq(Once(None));
        }
        self.ty = match self.ty {
            Some(Type::List(item)) => Some(*item),
            _ => None,
        };
        self.path.push_str("[]");
        visitor.visit_seq(Once(Some(self)))
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        self.expect("a mapping", |ty| matches!(ty, Type::Map(_) | Type::Any));
        self.ty = match self.ty {
            Some(Type::Map(item)) => Some(*item),
            _ => None,
        };
        visitor.visit_map(OnceMap { key: Some("key"), probe: Some(self) })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.expect("an object", |ty| matches!(ty, Type::Object(_) | Type::Any));
        let table = match self.ty {
            Some(Type::Object(fields)) => Some(*fields),
            _ => None,
        };
        if let Some(table) = table {
            for field in table.iter().filter(|f| !names.contains(&f.name)) {
                self.found.push(format!("{}.{}: is in the table only", self.path, field.name));
            }
            for pair in table.windows(2).filter(|pair| pair[0].name >= pair[1].name) {
                self.found.push(format!("{}.{}: out of order", self.path, pair[1].name));
            }
        }
        // Of what the table does not look into, nothing more is of interest.
        let names = if self.opaque() { &[][..] } else { names };
        visitor.visit_map(Fields { names, table, probe: self })
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct
        enum identifier ignored_any
    }
}

struct Once<T>(Option<T>);

impl<'de> SeqAccess<'de> for Once<Probe<'_>> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|probe| seed.deserialize(probe)).transpose()
    }
}

struct OnceMap<'a> {
    key: Option<&'static str>,
    probe: Option<Probe<'a>>,
}

impl<'de> MapAccess<'de> for OnceMap<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let key: Option<StrDeserializer<'_, Error>> =
            self.key.take().map(|k| k.into_deserializer());
        key.map(|key| seed.deserialize(key)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.probe.take().ok_or_else(|| de::Error::custom("asked twice"))?)
    }
}

struct Fields<'a> {
    names: &'static [&'static str],
    table: Option<&'static [Field]>,
    probe: Probe<'a>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.names.first() else { return Ok(None) };
        let key: StrDeserializer<'_, Error> = (*name).into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, rest) = self.names.split_first().unwrap();
        self.names = rest;
        *self.probe.seen += 1;
        let path = if self.probe.path.is_empty() {
            (*name).to_owned()
        } else {
            format!("{}.{name}", self.probe.path)
        };
        let field = self.table.and_then(|table| table.iter().find(|f| f.name == *name));
        if self.table.is_some() && field.is_none() {
            self.probe.found.push(format!("{path}: is missing from the table"));
        }
        let ty = field.filter(|f| f.support != Support::No).map(|f| &f.ty);
        seed.deserialize(Probe { path, ty, found: self.probe.found, seen: self.probe.seen })
    }
}

#[test]
fn the_table_has_every_field_of_the_api_with_its_type() {
    let (mut found, mut seen) = (Vec::new(), 0);
    static ROOT: Type = Type::Object(POD);
    let probe = Probe { path: String::new(), ty: Some(&ROOT), found: &mut found, seen: &mut seen };
    let read = <k8s::Pod as serde::Deserialize>::deserialize(probe);
    assert!(read.is_ok(), "the probe itself failed: {read:?}");
    assert!(found.is_empty(), "{found:#?}");
    // The probe did look: a table that it could not get into would pass as well.
    assert!(seen > 250, "only {seen} fields were looked at");
}

#[test]
fn every_departure_has_a_note() {
    fn check(fields: &'static [Field], path: &str) {
        for field in fields {
            let path = format!("{path}.{}", field.name);
            assert_eq!(field.support == Support::Yes, field.note.is_empty(), "{path}");
            let mut ty = &field.ty;
            while let Type::List(item) | Type::Map(item) = ty {
                ty = item;
            }
            if let Type::Object(fields) = ty {
                check(fields, &path);
            }
        }
    }
    check(POD, "");
}

/// Fields that a static pod may not have, and that are no reason for a pod of the API server to
/// wait.
const EXEMPT: [(&str, &str); 7] = [
    ("spec.ephemeralContainers[]", "the API server adds them to a pod that runs"),
    ("spec.schedulingGates[]", "the API server binds no pod that has a gate"),
    ("spec.serviceAccount", "a reference to an object of the API"),
    ("spec.serviceAccountName", "a reference to an object of the API"),
    ("spec.volumes[].ephemeral", "its claim is an object of the API"),
    ("spec.volumes[].persistentVolumeClaim", "a reference to an object of the API"),
    (
        "spec.volumes[].projected.sources[].serviceAccountToken",
        "a reference to an object of the API",
    ),
];

/// The paths of all fields that the decoder rejects, `[]` after each list.
fn rejected(fields: &'static [Field], prefix: &str, found: &mut Vec<String>) {
    for field in fields {
        let (mut path, mut ty) = (format!("{prefix}{}", field.name), &field.ty);
        while let Type::List(item) | Type::Map(item) = ty {
            if matches!(ty, Type::List(_)) {
                path.push_str("[]");
            }
            ty = item;
        }
        match (field.support, ty) {
            (Support::No, _) => found.push(path),
            (_, Type::Object(parts)) => rejected(parts, &format!("{path}."), found),
            (_, _) => {}
        }
    }
}

/// A pod that has the field, in a container or in a volume that the container mounts.
fn pod_with(path: &str) -> k8s::Pod {
    // Whatever the type of the field is, one of these fits.
    let values = [json!({}), json!("x"), json!(true)];
    let mut pods = values.into_iter().filter_map(|value| {
        let mount = json!({"name": "v", "mountPath": "/v"});
        let container = json!({"name": "c", "volumeMounts": [mount]});
        let volume = json!({"name": "v", "emptyDir": {}});
        let mut pod = json!({"spec": {"containers": [container], "volumes": [volume]}});
        let mut place = &mut pod;
        for part in path.split('.') {
            place = &mut place[part.trim_end_matches("[]")];
            if part.ends_with("[]") {
                if place.is_null() {
                    *place = json!([{}]);
                }
                place = &mut place[0];
            }
        }
        *place = value;
        serde_json::from_value(pod).ok()
    });
    pods.next().unwrap()
}

#[test]
fn every_rejected_field_is_unsupported_for_pods_of_the_api_server() {
    let mut all = Vec::new();
    rejected(POD, "", &mut all);
    assert!(all.len() > 40, "only {} fields were found", all.len());
    let ignored: BTreeSet<&str> = all
        .iter()
        .map(String::as_str)
        .filter(|path| unsupported(&pod_with(path)).is_none())
        .collect();
    let exempt: BTreeSet<&str> = EXEMPT.iter().map(|(path, _)| *path).collect();
    assert_eq!(ignored, exempt, "podspec::unsupported must report a field that is not exempt");
}
