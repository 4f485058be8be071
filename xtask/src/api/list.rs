//! [`list`]: one line for each public item.

use rustdoc_types::{
    Attribute, Generics, Id, Impl, Item, ItemEnum, MacroKind, StructKind, Variant, VariantKind,
};

use super::docs::{Docs, Key};
use super::paths::{Paths, is_hidden, is_public};
use super::render::Renderer;

/// Auto traits whose absence is worth a line.
const NOTED: [&str; 3] = ["Send", "Sync", "Unpin"];

/// Traits that `derive` implements beside those in its list.
const UNNOTED: [&str; 1] = ["StructuralPartialEq"];

/// A line of the list. Lines are sorted by the path of the item. An item comes before its impls.
/// The path of a field, a variant or a method begins with that of its type, so it follows the type.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    path: Vec<String>,
    is_impl: bool,
    text: String,
}

/// Lists the items that users reach from the root of a crate, one a line.
pub(super) fn list(docs: &Docs, root: Key) -> Result<String, String> {
    let paths = Paths::find(docs, root)?;
    let name = docs.item(root).name.as_deref().unwrap_or_default();
    let mut lines = Vec::new();
    let mut add = |path: &str, is_impl, text| {
        lines.push(Line { path: path.split("::").map(str::to_owned).collect(), is_impl, text });
    };
    let lister =
        |key: Key| Lister { docs, name, render: Renderer::new(docs, &paths, key.krate), krate: key.krate };
    for (path, key) in paths.items() {
        lister(key).item(path, &full(name, path), None, docs.item(key), &mut add);
    }
    for (key, item) in docs.items() {
        if let ItemEnum::Impl(block) = &item.inner
            && !is_hidden(item)
        {
            lister(key).block(block, &mut add);
        }
    }
    for (path, first) in &paths.aliases {
        add(path, false, format!("use {} = {}", full(name, path), full(name, first)));
    }
    for (path, there) in &paths.foreign {
        add(path, false, format!("use {} = {there}", full(name, path)));
    }
    lines.sort();
    lines.dedup();
    Ok(lines.into_iter().map(|line| line.text + "\n").collect())
}

fn full(root: &str, path: &str) -> String {
    if path.is_empty() { root.to_owned() } else { format!("{root}::{path}") }
}

/// Writes the lines of items of one crate.
struct Lister<'a> {
    docs: &'a Docs,
    /// The first name in the path of each item.
    name: &'a str,
    render: Renderer<'a>,
    krate: usize,
}

/// Takes a line: the path that it is sorted by, whether it is an impl, and the text.
type Add<'a> = dyn FnMut(&str, bool, String) + 'a;

impl<'a> Lister<'a> {
    /// Returns the fields, variants or methods among these that users see.
    fn visible(&self, ids: &[Id]) -> Vec<&'a Item> {
        let items = ids.iter().map(|id| self.docs.item(Key { krate: self.krate, id: *id }));
        items.filter(|item| is_public(item) && !is_hidden(item)).collect()
    }

    /// Writes the lines of an item and of its members, but not those of its impls. `outer` has the
    /// parameters of the impl around the item.
    fn item(&self, path: &str, name: &str, outer: Option<&Generics>, item: &Item, add: &mut Add<'_>) {
        let render = &self.render;
        let params = |generics: &Generics| render.params(&generics.params);
        let wheres = |generics: &Generics| render.wheres(outer, generics);
        let bounds = |bounds| {
            let bounds = render.bounds(bounds);
            if bounds.is_empty() { bounds } else { format!(": {bounds}") }
        };
        let or_nothing = |text: Option<String>| {
            text.filter(|text| text != "_").map_or_else(String::new, |text| format!(" = {text}"))
        };
        let mut members: &[Id] = &[];
        let text = match &item.inner {
            ItemEnum::Module(_) => format!("mod {name}"),
            ItemEnum::Struct(data) => {
                let generics = &data.generics;
                let end = match &data.kind {
                    StructKind::Unit => String::new(),
                    StructKind::Tuple(fields) => self.tuple(fields),
                    StructKind::Plain { fields, .. } => {
                        members = fields;
                        self.rest(fields).to_owned()
                    }
                };
                format!("struct {name}{}{end}{}", params(generics), wheres(generics))
            }
            ItemEnum::Union(data) => {
                members = &data.fields;
                let (params, wheres) = (params(&data.generics), wheres(&data.generics));
                format!("union {name}{params}{}{wheres}", self.rest(members))
            }
            ItemEnum::Enum(data) => {
                members = &data.variants;
                format!("enum {name}{}{}", params(&data.generics), wheres(&data.generics))
            }
            ItemEnum::Trait(data) => {
                members = &data.items;
                let (params, wheres) = (params(&data.generics), wheres(&data.generics));
                let word = if data.is_unsafe { "unsafe " } else { "" };
                let note = if data.is_dyn_compatible { "" } else { " // not dyn compatible" };
                format!("{word}trait {name}{params}{}{wheres}{note}", bounds(&data.bounds))
            }
            ItemEnum::Function(data) => {
                let (params, wheres) = (params(&data.generics), wheres(&data.generics));
                let end = if data.has_body { "" } else { ";" };
                format!(
                    "{}fn {name}{params}{}{wheres}{end}",
                    render.header(&data.header),
                    render.signature(&data.sig)
                )
            }
            ItemEnum::TypeAlias(alias) => {
                let (params, wheres) = (params(&alias.generics), wheres(&alias.generics));
                format!("type {name}{params}{wheres} = {}", render.kind(&alias.type_))
            }
            ItemEnum::Constant { type_, const_ } => {
                format!("const {name}: {}{}", render.kind(type_), or_nothing(const_.value.clone()))
            }
            ItemEnum::AssocConst { type_, value } => {
                format!("const {name}: {}{}", render.kind(type_), or_nothing(value.clone()))
            }
            ItemEnum::AssocType { generics, bounds: of, type_ } => {
                let default = or_nothing(type_.as_ref().map(|kind| render.kind(kind)));
                format!("type {name}{}{}{default}{}", params(generics), bounds(of), wheres(generics))
            }
            ItemEnum::Static(data) => {
                let mutable = if data.is_mutable { "mut " } else { "" };
                format!("static {mutable}{name}: {}", render.kind(&data.type_))
            }
            ItemEnum::Macro(text) => {
                format!("macro {name}! {}", text.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            ItemEnum::ProcMacro(data) => match data.kind {
                MacroKind::Bang => format!("macro {name}!"),
                MacroKind::Attr => format!("macro #[{name}]"),
                MacroKind::Derive => format!("macro #[derive({name})]"),
            },
            ItemEnum::StructField(kind) => format!("field {name}: {}", render.kind(kind)),
            ItemEnum::Variant(data) => format!("variant {name}{}", self.variant(data)),
            other => format!("{:?} {name}", other.item_kind()),
        };
        add(path, false, format!("{}{text}", marks(item)));
        self.members(path, name, outer, members, add);
    }

    fn members(&self, path: &str, name: &str, outer: Option<&Generics>, ids: &[Id], add: &mut Add<'_>) {
        for item in self.visible(ids) {
            let own = item.name.as_deref().unwrap_or_default();
            self.item(&format!("{path}::{own}"), &format!("{name}::{own}"), outer, item, add);
        }
    }

    /// Returns a mark for a type that has both public and other fields: users can't build such a
    /// type.
    fn rest(&self, ids: &[Id]) -> &'static str {
        let visible = self.visible(ids).len();
        if visible > 0 && visible < ids.len() { " { .. }" } else { "" }
    }

    /// Lists the fields in parentheses, with `_` for those that users don't see.
    fn tuple(&self, ids: &[Option<Id>]) -> String {
        let field = |id: &Option<Id>| self.visible(id.as_slice()).first().and_then(|field| self.field(field));
        let fields: Vec<_> = ids.iter().map(field).collect();
        if fields.iter().all(Option::is_none) {
            return String::new();
        }
        let fields = fields.into_iter().map(|field| field.unwrap_or_else(|| "_".to_owned()));
        format!("({})", fields.collect::<Vec<_>>().join(", "))
    }

    fn field(&self, field: &Item) -> Option<String> {
        let ItemEnum::StructField(kind) = &field.inner else { return None };
        Some(self.render.kind(kind))
    }

    fn variant(&self, variant: &Variant) -> String {
        let fields = match &variant.kind {
            VariantKind::Plain => String::new(),
            VariantKind::Tuple(fields) => self.tuple(fields),
            VariantKind::Struct { fields, .. } => {
                let visible = self.visible(fields);
                let named =
                    |field: &&Item| Some(format!("{}: {}", field.name.as_deref()?, self.field(field)?));
                let hidden = (visible.len() < fields.len()).then(|| "..".to_owned());
                let all: Vec<_> = visible.iter().filter_map(named).chain(hidden).collect();
                format!(" {{ {} }}", all.join(", "))
            }
        };
        let number = variant.discriminant.as_ref().map(|number| format!(" = {}", number.value));
        fields + &number.unwrap_or_default()
    }

    /// Writes the methods of an inherent impl, or the line of a trait's impl. Leaves out impls that
    /// name an item of ours that users don't reach.
    fn block(&self, block: &Impl, add: &mut Add<'_>) {
        let render = &self.render;
        render.take_ours();
        let (of, what) = (render.kind(&block.for_), block.trait_.as_ref().map(|path| render.path(path)));
        let ours: Option<Vec<&str>> = render.take_ours().into_iter().collect();
        let Some([path, ..]) = ours.as_deref() else { return };
        let (Some(path_of_trait), Some(what)) = (&block.trait_, what) else {
            return self.members(path, &full(self.name, &of), Some(&block.generics), &block.items, add);
        };
        let is_noted = match block.is_synthetic {
            true => block.is_negative && NOTED.contains(&what.as_str()),
            false => block.blanket_impl.is_none() && !UNNOTED.contains(&what.as_str()),
        };
        if is_noted {
            let types = self.visible(&block.items).into_iter().filter_map(|item| match &item.inner {
                ItemEnum::AssocType { type_: Some(kind), .. } => {
                    Some(format!("{} = {}", item.name.as_deref()?, render.kind(kind)))
                }
                _ => None,
            });
            let what = render.path_with(path_of_trait, &types.collect::<Vec<_>>());
            let (word, not) =
                (if block.is_unsafe { "unsafe " } else { "" }, if block.is_negative { "!" } else { "" });
            let (params, wheres) =
                (render.params(&block.generics.params), render.wheres(None, &block.generics));
            // Macros make up names with two underscores.
            if !wheres.contains("<__") {
                add(path, true, format!("{word}impl{params} {not}{what} for {of}{wheres}"));
            }
        }
    }
}

/// Returns the attributes that users have to know.
fn marks(item: &Item) -> String {
    let attrs = item.attrs.iter().filter_map(|attr| match attr {
        Attribute::NonExhaustive => Some("#[non_exhaustive] "),
        Attribute::MustUse { .. } => Some("#[must_use] "),
        _ => None,
    });
    attrs.chain(item.deprecation.as_ref().map(|_| "#[deprecated] ")).collect()
}
