//! The OpenAPI document and the routes, made together so that neither has what the other has not.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, on};
use http::header::CONTENT_TYPE;
use utoipa::openapi::path::{Operation, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Content, HttpMethod, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, Ref,
    Required, ResponseBuilder, SecurityRequirement, Type,
};
use utoipa_axum::router::OpenApiRouter;

use crate::ApiState;
use crate::auth::Auth;
use crate::error::ApiError;
use crate::later::{Asker, LATER, Later};
use crate::path::SandboxPath;

/// Where the document is served.
const PATH: &str = "/openapi.json";

/// The OpenAPI 3.1 document of everything that [`crate::router`] serves.
pub fn openapi() -> OpenApi {
    routes().into_openapi()
}

/// All routes with their documentation.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    let mut router = OpenApiRouter::with_openapi(skeleton()).merge(crate::routes::all());
    for later in LATER {
        router = router.route(later.path, not_yet(later));
        router.get_openapi_mut().paths.add_path_operation(
            later.path,
            vec![later.method.clone()],
            describe(later),
        );
    }
    let document = OperationBuilder::new()
        .operation_id(Some("get_openapi"))
        .tag("meta")
        .summary(Some("This document"))
        .response("200", ResponseBuilder::new().description("OpenAPI 3.1").build())
        .build();
    router.get_openapi_mut().paths.add_path_operation(PATH, vec![HttpMethod::Get], document);
    router
}

/// Adds the route that serves the document.
pub(crate) fn serve(router: Router<ApiState>, document: &OpenApi) -> Router<ApiState> {
    let route: MethodRouter<ApiState> = match document.to_json() {
        Ok(json) => {
            let json: Arc<str> = json.into();
            get(
                move || async move { ([(CONTENT_TYPE, "application/json")], json.to_string()).into_response() },
            )
        }
        Err(error) => {
            tracing::error!(%error, "the OpenAPI document cannot be written");
            get(|| async { ApiError::not_supported("the OpenAPI document") })
        }
    };
    router.route(PATH, route)
}

fn skeleton() -> OpenApi {
    let key = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(
        "X-API-Key",
        "An API key, as `hutch key create` prints it.",
    )));
    let bearer = SecurityScheme::Http(
        HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key, too.")).build(),
    );
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Hutch")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some("Sandboxes over an API that E2B's clients speak."))
                .build(),
        )
        .components(Some(
            ComponentsBuilder::new()
                .security_scheme("ApiKeyAuth", key)
                .security_scheme("BearerAuth", bearer)
                .build(),
        ))
        .build()
}

/// The route of an operation that comes later.
fn not_yet(later: &'static Later) -> MethodRouter<ApiState> {
    let for_owners =
        move |State(state): State<ApiState>, Auth(caller): Auth, SandboxPath(id): SandboxPath| async move {
            state.app.get_sandbox(&caller, &id).await?;
            Err::<(), _>(ApiError::not_supported(later.what))
        };
    match later.asker {
        Asker::Key => on(later.filter(), |_: Auth| async { ApiError::not_supported(later.what) }),
        Asker::Owner => on(later.filter(), for_owners),
        Asker::Other => on(later.filter(), || async { ApiError::not_supported(later.what) }),
    }
}

fn describe(later: &Later) -> Operation {
    let parameters = later.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters = parameters.map(|name| {
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
            .build()
    });
    let error = Content::new(Some(Ref::from_schema_name("Error")));
    let refusal =
        |text: &str| ResponseBuilder::new().description(text).content("application/json", error.clone());
    let mut operation = OperationBuilder::new()
        .operation_id(Some(operation_id(later)))
        .tag("later")
        .summary(Some(format!("Not supported by this version: {}", later.what)))
        .parameters(Some(parameters))
        .response("501", refusal("Not supported by this version.").build());
    if later.asker == Asker::Owner {
        operation = operation
            .response("400", refusal("Not an id of a sandbox.").build())
            .response("404", refusal("No such sandbox, or not yours.").build());
    }
    if later.asker != Asker::Other {
        operation = operation
            .security(SecurityRequirement::new("ApiKeyAuth", Vec::<String>::new()))
            .response("401", refusal("No API key, or not a known one.").build());
    }
    operation.build()
}

/// `post_v2_sandboxes_sandboxID_fork` and the like.
fn operation_id(later: &Later) -> String {
    let method = match later.method {
        HttpMethod::Delete => "delete",
        HttpMethod::Patch => "patch",
        HttpMethod::Post => "post",
        HttpMethod::Put => "put",
        _ => "get",
    };
    later.path.split('/').filter(|part| !part.is_empty()).fold(method.to_owned(), |mut id, part| {
        id.push('_');
        id.push_str(&part.trim_matches(['{', '}']).replace('-', "_"));
        id
    })
}
