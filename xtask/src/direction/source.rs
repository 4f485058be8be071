//! Reads the sources of a crate: its modules, the names in them, and the paths they mention.
//! Test code is left out; every other `cfg` counts as true.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{Item, ItemUse, Meta, Token, UseTree, Visibility};

/// A path, segment by segment.
pub(super) type Path = Vec<String>;

/// A module, inline or with a file.
#[derive(Default)]
pub(crate) struct Module {
    /// Relative to the crate's `src`.
    pub(crate) file: String,
    pub(super) parent: Option<usize>,
    pub(super) names: BTreeMap<String, Vec<Name>>,
    pub(super) globs: Vec<Glob>,
    pub(super) macros: BTreeSet<String>,
    /// All paths of two or more segments, imports included.
    pub(super) paths: BTreeSet<Path>,
    /// The imports visible to other modules, by their names here.
    pub(super) shown: BTreeSet<(String, Path)>,
    pub(super) idents: BTreeSet<String>,
    /// Those of `idents` that are not variables: types, constants, and functions that are called.
    pub(super) used: BTreeSet<String>,
    pub(super) invoked: BTreeSet<String>,
}

/// The meaning of a name in its module.
pub(super) enum Name {
    Item,
    Module(usize),
    Import(Path),
}

pub(super) struct Glob {
    pub(super) path: Path,
    pub(super) is_public: bool,
}

/// Reads the crate that starts at `entry`; `read` returns the text of a file in `src`.
pub(crate) fn read(entry: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<Vec<Module>, String> {
    let mut reader = Reader { read, modules: Vec::new() };
    reader.file(None, entry, "")?;
    Ok(reader.modules)
}

/// Reads the file, without code for tests only.
pub(crate) fn parse(file: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<syn::File, String> {
    let text = read(file).ok_or_else(|| format!("{file} cannot be read"))?;
    let mut parsed = syn::parse_file(&text).map_err(|error| format!("{file}: {error}"))?;
    WithoutTests.visit_file_mut(&mut parsed);
    Ok(parsed)
}

struct Reader<'a> {
    read: &'a dyn Fn(&str) -> Option<String>,
    modules: Vec<Module>,
}

impl Reader<'_> {
    fn file(&mut self, parent: Option<usize>, file: &str, folder: &str) -> Result<usize, String> {
        let items = parse(file, self.read)?.items;
        self.module(parent, file, folder, items)
    }

    fn module(
        &mut self,
        parent: Option<usize>,
        file: &str,
        folder: &str,
        items: Vec<Item>,
    ) -> Result<usize, String> {
        let id = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
        for item in items {
            let name = match item {
                Item::Mod(item) => {
                    let name = text(&item.ident);
                    let inner = format!("{folder}{name}/");
                    let child = match item.content {
                        Some((_, items)) => self.module(Some(id), file, &inner, items)?,
                        None => {
                            let files = [format!("{folder}{name}.rs"), format!("{inner}mod.rs")];
                            let found = files.iter().find(|file| (self.read)(file).is_some());
                            let found = found.ok_or_else(|| format!("{file}: no file for `mod {name}`"))?;
                            self.file(Some(id), found, &inner)?
                        }
                    };
                    self.modules[id].name(name, Name::Module(child));
                    continue;
                }
                Item::Use(item) => {
                    self.modules[id].import(&item);
                    continue;
                }
                Item::Macro(ref item) => item.ident.as_ref().map(|name| {
                    self.modules[id].macros.insert(text(name));
                    text(name)
                }),
                Item::Const(ref item) => Some(text(&item.ident)),
                Item::Enum(ref item) => Some(text(&item.ident)),
                Item::Fn(ref item) => Some(text(&item.sig.ident)),
                Item::Static(ref item) => Some(text(&item.ident)),
                Item::Struct(ref item) => Some(text(&item.ident)),
                Item::Trait(ref item) => Some(text(&item.ident)),
                Item::TraitAlias(ref item) => Some(text(&item.ident)),
                Item::Type(ref item) => Some(text(&item.ident)),
                Item::Union(ref item) => Some(text(&item.ident)),
                _ => None,
            };
            if let Some(name) = name {
                self.modules[id].name(name, Name::Item);
            }
            self.modules[id].scan(item.into_token_stream());
        }
        Ok(id)
    }
}

impl Module {
    fn name(&mut self, name: String, stands_for: Name) {
        self.names.entry(name).or_default().push(stands_for);
    }

    /// Notes the names that a `use` brings. One inside a function counts for the whole module.
    fn import(&mut self, item: &ItemUse) {
        let mut prefix = match item.leading_colon {
            Some(_) => vec!["::".to_owned()],
            None => Vec::new(),
        };
        let is_public = !matches!(item.vis, Visibility::Inherited);
        self.tree(&item.tree, &mut prefix, is_public);
    }

    fn tree(&mut self, tree: &UseTree, prefix: &mut Path, is_public: bool) {
        match tree {
            UseTree::Path(tree) => {
                prefix.push(text(&tree.ident));
                self.tree(&tree.tree, prefix, is_public);
                prefix.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(tree, prefix, is_public));
            }
            UseTree::Glob(_) => self.globs.push(Glob { path: prefix.clone(), is_public }),
            UseTree::Name(tree) => self.leaf(prefix.clone(), text(&tree.ident), None, is_public),
            UseTree::Rename(tree) => {
                self.leaf(prefix.clone(), text(&tree.ident), Some(text(&tree.rename)), is_public);
            }
        }
    }

    fn leaf(&mut self, mut path: Path, last: String, rename: Option<String>, is_public: bool) {
        if last != "self" || path.is_empty() {
            path.push(last);
        }
        let name = rename.or_else(|| path.last().cloned()).unwrap_or_default();
        if is_public {
            self.shown.insert((name.clone(), path.clone()));
        } else {
            self.paths.insert(path.clone());
        }
        self.name(name, Name::Import(path));
    }

    /// Notes the paths in `stream`, also in macro calls and attributes.
    fn scan(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let is = |at: usize, wanted: char| match tokens.get(at) {
            Some(TokenTree::Punct(punct)) => punct.as_char() == wanted,
            _ => false,
        };
        let mut at = 0;
        while at < tokens.len() {
            let start = at;
            at += 1;
            match &tokens[start] {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(ident) if ident == "use" => {
                    let end = (at..tokens.len()).find(|end| is(*end, ';')).unwrap_or(start);
                    let item = tokens[start..=end].iter().cloned().collect();
                    if let Ok(item) = syn::parse2::<ItemUse>(item) {
                        self.import(&item);
                        at = end;
                    }
                }
                TokenTree::Ident(ident) if ident == "pub" && is_place(tokens.get(at)) => at += 1,
                TokenTree::Ident(ident) => {
                    let mut path = vec![text(ident)];
                    while let (true, true, Some(TokenTree::Ident(next))) =
                        (is(at, ':'), is(at + 1, ':'), tokens.get(at + 2))
                    {
                        path.push(text(next));
                        at += 3;
                    }
                    self.idents.insert(path[0].clone());
                    let is_called = path.len() > 1 || is_arguments(tokens.get(at));
                    let is_member = start > 0 && is(start - 1, '.');
                    if !is_member && (is_called || path[0].starts_with(char::is_uppercase)) {
                        self.used.insert(path[0].clone());
                    }
                    let goes_on = start > 1 && is(start - 1, ':') && is(start - 2, ':');
                    match path.len() {
                        1 if is(at, '!') => drop(self.invoked.insert(path.remove(0))),
                        2.. if !goes_on => drop(self.paths.insert(path)),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }
}

fn text(ident: &proc_macro2::Ident) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

fn is_arguments(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
}

/// Whether the token is the rest of `pub(in …)`.
fn is_place(token: Option<&TokenTree>) -> bool {
    let Some(TokenTree::Group(group)) = token else { return false };
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Parenthesis
        && matches!(first, Some(TokenTree::Ident(ident)) if ident == "in")
}

/// Removes everything that is compiled for tests only.
struct WithoutTests;

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        if file.attrs.iter().any(|attr| is_for_tests(&attr.meta)) {
            (file.attrs, file.items) = Default::default();
        }
        file.items.retain(is_production);
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, item: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut item.content {
            items.retain(is_production);
        }
        visit_mut::visit_item_mod_mut(self, item);
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        item.items.retain(is_production);
        visit_mut::visit_item_impl_mut(self, item);
    }

    fn visit_item_trait_mut(&mut self, item: &mut syn::ItemTrait) {
        item.items.retain(is_production);
        visit_mut::visit_item_trait_mut(self, item);
    }

    fn visit_item_enum_mut(&mut self, item: &mut syn::ItemEnum) {
        retain(&mut item.variants);
        visit_mut::visit_item_enum_mut(self, item);
    }

    fn visit_fields_named_mut(&mut self, fields: &mut syn::FieldsNamed) {
        retain(&mut fields.named);
        visit_mut::visit_fields_named_mut(self, fields);
    }

    fn visit_fields_unnamed_mut(&mut self, fields: &mut syn::FieldsUnnamed) {
        retain(&mut fields.unnamed);
        visit_mut::visit_fields_unnamed_mut(self, fields);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.retain(is_production);
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_expr_match_mut(&mut self, expr: &mut syn::ExprMatch) {
        expr.arms.retain(is_production);
        visit_mut::visit_expr_match_mut(self, expr);
    }

    fn visit_expr_struct_mut(&mut self, expr: &mut syn::ExprStruct) {
        retain(&mut expr.fields);
        visit_mut::visit_expr_struct_mut(self, expr);
    }
}

fn retain<T: ToTokens, P>(list: &mut Punctuated<T, P>) {
    *list = std::mem::take(list).into_pairs().filter(|pair| is_production(pair.value())).collect();
}

/// Whether `thing` is compiled outside of tests, by the attributes in front of it.
fn is_production(thing: &impl ToTokens) -> bool {
    let mut tokens = thing.to_token_stream().into_iter();
    while let (Some(TokenTree::Punct(_)), Some(TokenTree::Group(group))) = (tokens.next(), tokens.next()) {
        if syn::parse2::<Meta>(group.stream()).is_ok_and(|meta| is_for_tests(&meta)) {
            return false;
        }
    }
    true
}

/// Whether this attribute restricts its item to tests.
fn is_for_tests(attribute: &Meta) -> bool {
    match attribute {
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|condition| needs_tests(&condition))
        }
        _ => attribute.path().is_ident("test"),
    }
}

/// Whether a condition holds in tests only.
fn needs_tests(meta: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default()
    };
    match meta {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(needs_tests),
        Meta::List(list) if list.path.is_ident("any") => parts(list).iter().all(needs_tests),
        _ => false,
    }
}
