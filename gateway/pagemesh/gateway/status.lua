-- Gives answers of the OpenAI routes their HTTP status.
--
-- The router names the status in the header x-http-status and sends the body itself. An RPC that
-- ended without a body (a crash, or a limit of the server) carries only a gRPC status, which the
-- transcoder has turned into an HTTP status: it gets an OpenAI error body here. Routes of native
-- gRPC do not run this script.

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

local function error_type(status)
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

function envoy_on_response(handle)
  local headers = handle:headers()
  local status = headers:get("x-http-status")
  if status then
    headers:remove("x-http-status")
    if status:match("^[2-5]%d%d$") then
      headers:replace(":status", status)
    end
  end

  local code = headers:get("grpc-status")
  local message = headers:get("grpc-message")
  headers:remove("grpc-status")
  headers:remove("grpc-message")
  if code == nil or code == "0" then
    return
  end
  local text = decode(message or "")
  if text == "" then
    text = "The request failed with gRPC status " .. code .. "."
  end
  local body = '{"error": {"message": ' .. json_string(text) .. ', "type": "'
    .. error_type(headers:get(":status")) .. '", "param": null, "code": null}}'
  headers:replace("content-type", "application/json")
  local length = handle:body(true):setBytes(body)
  headers:replace("content-length", tostring(length))
end
