//! [`Renderer`]: types, bounds and signatures as text.

use std::cell::RefCell;
use std::collections::HashMap;

use rustdoc_types::{
    Abi, AssocItemConstraintKind, FunctionHeader, FunctionSignature, GenericArg, GenericArgs, GenericBound,
    GenericParamDef, GenericParamDefKind, Generics, Id, ItemEnum, Path, PolyTrait, PreciseCapturingArg, Term,
    TraitBoundModifier, Type, WherePredicate,
};

use super::docs::{Docs, Named};
use super::paths::Paths;

/// Renders the types in one crate. The text doesn't depend on the crates of the named items.
pub(super) struct Renderer<'a> {
    docs: &'a Docs,
    paths: &'a Paths,
    krate: usize,
    /// Arguments in place of the parameters of an alias, while its type is rendered.
    replaced: HashMap<&'a str, String>,
    /// Our items among the names since [`Self::take_ours`]: their path, if users reach them.
    ours: RefCell<Vec<Option<&'a str>>>,
}

impl<'a> Renderer<'a> {
    pub(super) fn new(docs: &'a Docs, paths: &'a Paths, krate: usize) -> Self {
        Self { docs, paths, krate, replaced: HashMap::new(), ours: RefCell::default() }
    }

    pub(super) fn take_ours(&self) -> Vec<Option<&'a str>> {
        self.ours.take()
    }

    /// Names an item: one of ours by its path, a foreign one by its last name. The path of a
    /// foreign item can change with each version of its crate. `Error` has its module before it.
    fn name(&self, id: Id, written: &str) -> String {
        let written = || written.rsplit("::").next().unwrap_or_default().to_owned();
        match self.docs.find(self.krate, id) {
            Some(Named::Ours(key)) => {
                let path = self.paths.of(key);
                self.ours.borrow_mut().push(path);
                let own = || self.docs.item(key).name.clone().unwrap_or_else(written);
                path.map_or_else(own, str::to_owned)
            }
            Some(Named::Foreign([.., module, name])) if name == "Error" => format!("{module}::{name}"),
            Some(Named::Foreign([.., name])) => name.clone(),
            Some(Named::Foreign([])) | None => written(),
        }
    }

    pub(super) fn path(&self, path: &Path) -> String {
        self.path_with(path, &[])
    }

    /// Renders a path with more arguments.
    pub(super) fn path_with(&self, path: &Path, more: &[String]) -> String {
        format!("{}{}", self.name(path.id, &path.path), self.args(path.args.as_deref(), more))
    }

    fn args(&self, args: Option<&GenericArgs>, more: &[String]) -> String {
        let mut all = Vec::new();
        match args {
            None => {}
            Some(GenericArgs::AngleBracketed { args, constraints }) => {
                all.extend(args.iter().map(|arg| self.arg(arg)));
                all.extend(constraints.iter().map(|constraint| {
                    let name = format!("{}{}", constraint.name, self.args(constraint.args.as_deref(), &[]));
                    match &constraint.binding {
                        AssocItemConstraintKind::Equality(term) => format!("{name} = {}", self.term(term)),
                        AssocItemConstraintKind::Constraint(bounds) => {
                            format!("{name}: {}", self.bounds(bounds))
                        }
                    }
                }));
            }
            Some(GenericArgs::Parenthesized { inputs, output }) => {
                return format!("({}){}", self.kinds(inputs), self.output(output.as_ref()));
            }
            Some(GenericArgs::ReturnTypeNotation) => return "(..)".to_owned(),
        }
        all.extend_from_slice(more);
        angled(&all)
    }

    fn arg(&self, arg: &GenericArg) -> String {
        match arg {
            GenericArg::Lifetime(name) => self.replace(name),
            GenericArg::Type(kind) => self.kind(kind),
            GenericArg::Const(value) => value.expr.clone(),
            GenericArg::Infer => "_".to_owned(),
        }
    }

    fn term(&self, term: &Term) -> String {
        match term {
            Term::Type(kind) => self.kind(kind),
            Term::Constant(value) => value.expr.clone(),
        }
    }

    fn kinds(&self, kinds: &[Type]) -> String {
        kinds.iter().map(|kind| self.kind(kind)).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn kind(&self, kind: &Type) -> String {
        match kind {
            Type::ResolvedPath(path) => self.unaliased(path).unwrap_or_else(|| self.path(path)),
            Type::DynTrait(object) => {
                let mut traits: Vec<_> = object.traits.iter().map(|bound| self.poly(bound)).collect();
                // In inferred types, the order of auto traits depends on the compiler.
                if let [_, auto @ ..] = &mut traits[..] {
                    auto.sort();
                }
                traits.extend(object.lifetime.as_ref().map(|name| self.replace(name)));
                format!("dyn {}", traits.join(" + "))
            }
            Type::Generic(name) => self.replace(name),
            Type::Primitive(name) if name == "never" => "!".to_owned(),
            Type::Primitive(name) => name.clone(),
            Type::FunctionPointer(pointer) => {
                let header = self.header(&pointer.header);
                let inputs: Vec<_> = pointer.sig.inputs.iter().map(|(_, kind)| self.kind(kind)).collect();
                let output = self.output(pointer.sig.output.as_ref());
                format!("{}{header}fn({}){output}", self.binder(&pointer.generic_params), inputs.join(", "))
            }
            Type::Tuple(kinds) if kinds.len() == 1 => format!("({},)", self.kind(&kinds[0])),
            Type::Tuple(kinds) => format!("({})", self.kinds(kinds)),
            Type::Slice(kind) => format!("[{}]", self.kind(kind)),
            Type::Array { type_, len } => format!("[{}; {len}]", self.kind(type_)),
            Type::Pat { type_, .. } => self.kind(type_),
            Type::ImplTrait(bounds) => format!("impl {}", self.bounds(bounds)),
            Type::Infer => "_".to_owned(),
            Type::RawPointer { is_mutable, type_ } => {
                format!("*{} {}", if *is_mutable { "mut" } else { "const" }, self.pointee(type_))
            }
            Type::BorrowedRef { lifetime, is_mutable, type_ } => {
                let lifetime = lifetime.as_ref().map(|name| self.replace(name));
                format!("{}{}", reference(lifetime.as_deref(), *is_mutable), self.pointee(type_))
            }
            Type::QualifiedPath { name, args, self_type, trait_ } => {
                let (from, args) = (self.kind(self_type), self.args(args.as_deref(), &[]));
                match trait_ {
                    Some(path) if !path.path.is_empty() && !matches!(**self_type, Type::Generic(_)) => {
                        format!("<{from} as {}>::{name}{args}", self.path(path))
                    }
                    _ => format!("{from}::{name}{args}"),
                }
            }
        }
    }

    /// Renders the type behind an alias of ours that users don't reach. `rustdoc` puts the type in
    /// place of such an alias only in the crate of the alias.
    fn unaliased(&self, path: &Path) -> Option<String> {
        let Some(Named::Ours(key)) = self.docs.find(self.krate, path.id) else { return None };
        let (None, ItemEnum::TypeAlias(alias)) = (self.paths.of(key), &self.docs.item(key).inner) else {
            return None;
        };
        let mut behind = Renderer::new(self.docs, self.paths, key.krate);
        let args = match path.args.as_deref() {
            Some(GenericArgs::AngleBracketed { args, .. }) => &args[..],
            _ => &[],
        };
        let is_lifetime = |arg: &&GenericArg| matches!(arg, GenericArg::Lifetime(_));
        let mut lifetimes = args.iter().filter(is_lifetime);
        let mut others = args.iter().filter(|arg| !is_lifetime(arg));
        for param in &alias.generics.params {
            let arg = match &param.kind {
                GenericParamDefKind::Lifetime { .. } => lifetimes.next(),
                _ => others.next(),
            };
            let arg = match (arg, &param.kind) {
                (Some(arg), _) => self.arg(arg),
                (None, GenericParamDefKind::Type { default: Some(kind), .. }) => behind.kind(kind),
                (None, _) => "'_".to_owned(),
            };
            behind.replaced.insert(&param.name, arg);
        }
        let text = behind.kind(&alias.type_);
        self.ours.borrow_mut().extend(behind.take_ours());
        Some(text)
    }

    /// Returns the argument in place of a parameter, or its name.
    fn replace(&self, name: &str) -> String {
        self.replaced.get(name).map_or(name, String::as_str).to_owned()
    }

    /// Renders the type behind `&` or `*`.
    fn pointee(&self, kind: &Type) -> String {
        let text = self.kind(kind);
        let is_sum = match kind {
            Type::DynTrait(object) => object.traits.len() > 1 || object.lifetime.is_some(),
            Type::ImplTrait(bounds) => bounds.len() > 1,
            _ => false,
        };
        if is_sum { format!("({text})") } else { text }
    }

    fn poly(&self, bound: &PolyTrait) -> String {
        format!("{}{}", self.binder(&bound.generic_params), self.path(&bound.trait_))
    }

    fn binder(&self, params: &[GenericParamDef]) -> String {
        if params.is_empty() { String::new() } else { format!("for{} ", self.params(params)) }
    }

    pub(super) fn bounds(&self, bounds: &[GenericBound]) -> String {
        let bounds = bounds.iter().map(|bound| match bound {
            GenericBound::TraitBound { trait_, generic_params, modifier } => {
                let modifier = match modifier {
                    TraitBoundModifier::None => "",
                    TraitBoundModifier::Maybe => "?",
                    TraitBoundModifier::MaybeConst => "[const] ",
                };
                format!("{modifier}{}{}", self.binder(generic_params), self.path(trait_))
            }
            GenericBound::Outlives(lifetime) => self.replace(lifetime),
            GenericBound::Use(args) => {
                let args = args.iter().map(|arg| match arg {
                    PreciseCapturingArg::Lifetime(name) | PreciseCapturingArg::Param(name) => name.clone(),
                });
                format!("use<{}>", args.collect::<Vec<_>>().join(", "))
            }
        });
        bounds.collect::<Vec<_>>().join(" + ")
    }

    /// Renders parameters as they are declared: `<'a, T: Send, const N: usize>`.
    pub(super) fn params(&self, params: &[GenericParamDef]) -> String {
        let params = params.iter().filter_map(|param| {
            let name = &param.name;
            Some(match &param.kind {
                GenericParamDefKind::Lifetime { outlives } if outlives.is_empty() => name.clone(),
                GenericParamDefKind::Lifetime { outlives } => format!("{name}: {}", outlives.join(" + ")),
                GenericParamDefKind::Type { is_synthetic: true, .. } => return None,
                GenericParamDefKind::Type { bounds, default, .. } => {
                    let bounds =
                        if bounds.is_empty() { String::new() } else { format!(": {}", self.bounds(bounds)) };
                    let default = default.as_ref().map(|kind| format!(" = {}", self.kind(kind)));
                    format!("{name}{bounds}{}", default.unwrap_or_default())
                }
                GenericParamDefKind::Const { type_, default } => {
                    let default = default.as_ref().map(|value| format!(" = {value}"));
                    format!("const {name}: {}{}", self.kind(type_), default.unwrap_or_default())
                }
            })
        });
        angled(&params.collect::<Vec<_>>())
    }

    /// Renders the `where` clauses of an item. Those of the impl around it come first, with the
    /// bounds in its parameters.
    pub(super) fn wheres(&self, outer: Option<&Generics>, generics: &Generics) -> String {
        let params = outer.into_iter().flat_map(|outer| &outer.params);
        let bounded = params.filter_map(|param| match &param.kind {
            GenericParamDefKind::Type { bounds, .. } if !bounds.is_empty() => {
                Some(format!("{}: {}", param.name, self.bounds(bounds)))
            }
            _ => None,
        });
        let clauses = outer.into_iter().chain([generics]).flat_map(|generics| &generics.where_predicates);
        let clauses = clauses.map(|clause| match clause {
            WherePredicate::BoundPredicate { type_, bounds, generic_params } => {
                format!("{}{}: {}", self.binder(generic_params), self.kind(type_), self.bounds(bounds))
            }
            WherePredicate::LifetimePredicate { lifetime, outlives } => {
                format!("{lifetime}: {}", outlives.join(" + "))
            }
            WherePredicate::EqPredicate { lhs, rhs } => format!("{} = {}", self.kind(lhs), self.term(rhs)),
        });
        let all: Vec<_> = bounded.chain(clauses).collect();
        if all.is_empty() { String::new() } else { format!(" where {}", all.join(", ")) }
    }

    /// Renders the words before `fn`.
    pub(super) fn header(&self, header: &FunctionHeader) -> String {
        let abi = match &header.abi {
            Abi::Rust => String::new(),
            Abi::Other(name) => format!("extern {name:?} "),
            other => format!("extern {:?} ", format!("{other:?}").to_lowercase()),
        };
        let word = |is: bool, word| if is { word } else { "" };
        let (is_const, is_async) = (word(header.is_const, "const "), word(header.is_async, "async "));
        format!("{is_const}{is_async}{}{abi}", word(header.is_unsafe, "unsafe "))
    }

    /// Renders the arguments and the returned type.
    pub(super) fn signature(&self, signature: &FunctionSignature) -> String {
        let inputs = signature.inputs.iter().map(|(name, kind)| match (name.as_str(), kind) {
            ("self", Type::Generic(own)) if own == "Self" => "self".to_owned(),
            ("self", Type::BorrowedRef { lifetime, is_mutable, type_ }) if **type_ == own() => {
                format!("{}self", reference(lifetime.as_deref(), *is_mutable))
            }
            _ => format!("{name}: {}", self.kind(kind)),
        });
        let variadic = signature.is_c_variadic.then(|| "...".to_owned());
        let inputs: Vec<_> = inputs.chain(variadic).collect();
        format!("({}){}", inputs.join(", "), self.output(signature.output.as_ref()))
    }

    fn output(&self, output: Option<&Type>) -> String {
        output.map(|kind| format!(" -> {}", self.kind(kind))).unwrap_or_default()
    }
}

fn own() -> Type {
    Type::Generic("Self".to_owned())
}

fn reference(lifetime: Option<&str>, is_mutable: bool) -> String {
    let lifetime = lifetime.map(|name| format!("{name} ")).unwrap_or_default();
    format!("&{lifetime}{}", if is_mutable { "mut " } else { "" })
}

/// Puts `<…>` around the arguments, if there are any.
fn angled(all: &[String]) -> String {
    if all.is_empty() { String::new() } else { format!("<{}>", all.join(", ")) }
}
