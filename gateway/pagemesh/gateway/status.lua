-- Gives answers of the HTTP routes their status, and all answers what browsers ask of them.
--
-- The router names the status in the header x-http-status and sends the body itself. An RPC that
-- ended without a body (a crash, or a limit of the server) carries only a gRPC status, which the
-- transcoder has turned into an HTTP status: it gets an error body here, OpenAI's or, on paths that
-- begin with `anthropic_prefix`, Anthropic's. Routes of native gRPC do not run this script.
--
-- A HEAD goes to the router as the GET that it stands for, and comes back without its body.
--
-- Envoy's CORS filter leaves out what no router answers: a page could not read why it was refused.
-- All that is not defined here is set in the lines before these.

local namespace = "pagemesh.request"

local function json_string(text)
  return '"' .. text:gsub('[%c"\\]', function(char)
    return string.format("\\u%04x", char:byte())
  end) .. '"'
end

-- grpc-message is percent-encoded UTF-8.
local function decode(message)
  return (message:gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

local function openai_type(status)
  if status == "401" then
    return "authentication_error"
  elseif status == "403" then
    return "permission_error"
  elseif status == "429" then
    return "rate_limit_error"
  elseif status:sub(1, 1) == "4" then
    return "invalid_request_error"
  end
  return "server_error"
end

local anthropic_types = {
  ["401"] = "authentication_error",
  ["403"] = "permission_error",
  ["404"] = "not_found_error",
  ["413"] = "request_too_large",
  ["429"] = "rate_limit_error",
  ["504"] = "timeout_error",
}

local function anthropic_type(status)
  if status:sub(1, 1) == "4" then
    return anthropic_types[status] or "invalid_request_error"
  end
  return anthropic_types[status] or "api_error"
end

local function error_body(request_id, status, text)
  if request_id then
    return '{"type": "error", "error": {"type": "' .. anthropic_type(status)
      .. '", "message": ' .. json_string(text) .. '}, "request_id": '
      .. json_string(request_id) .. '}'
  end
  return '{"error": {"message": ' .. json_string(text) .. ', "type": "'
    .. openai_type(status) .. '", "param": null, "code": null}}'
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local metadata = handle:streamInfo():dynamicMetadata()
  if headers:get(":method") == "HEAD" then
    headers:replace(":method", "GET")
    metadata:set(namespace, "head", true)
  end
  local origin = headers:get("origin")
  if origin and (allowed_origins["*"] or allowed_origins[origin]) then
    metadata:set(namespace, "origin", origin)
  end
  if headers:get(":path"):sub(1, #anthropic_prefix) == anthropic_prefix then
    metadata:set(namespace, "anthropic_request_id", headers:get("x-request-id"))
  end
end

local function allow_to_read(origin, headers)
  if origin then
    headers:replace("access-control-allow-origin", origin)
    headers:replace("access-control-expose-headers", exposed_headers)
    if allow_credentials then
      headers:replace("access-control-allow-credentials", "true")
    end
  end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local known = handle:streamInfo():dynamicMetadata():get(namespace) or {}
  allow_to_read(known["origin"], headers)
  local status = headers:get("x-http-status")
  if status then
    headers:remove("x-http-status")
    if status:match("^[2-5]%d%d$") then
      headers:replace(":status", status)
    end
  end

  local milliseconds = headers:get("x-envoy-upstream-service-time")
  if milliseconds then
    headers:replace("openai-processing-ms", milliseconds)
    headers:remove("x-envoy-upstream-service-time")
  end
  headers:remove("grpc-accept-encoding")

  local code = headers:get("grpc-status")
  local message = headers:get("grpc-message")
  headers:remove("grpc-status")
  headers:remove("grpc-message")
  if code == nil or code == "0" then
    if known["head"] then
      for chunk in handle:bodyChunks() do
        chunk:setBytes("")
      end
    end
    return
  end
  local text = decode(message or "")
  if text == "" then
    text = "The request failed with gRPC status " .. code .. "."
  end
  local body = error_body(known["anthropic_request_id"], headers:get(":status"), text)
  headers:replace("content-type", "application/json")
  local length = handle:body(true):setBytes(body)
  headers:replace("content-length", tostring(length))
end
