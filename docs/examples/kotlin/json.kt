/** Stand-ins that read with kotlinx.serialization. */
package org.json

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.double
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive

class JSONObject(private val content: JsonObject) {
    constructor(text: String) : this(Json.parseToJsonElement(text).jsonObject)

    fun getJSONArray(name: String) = JSONArray(content.getValue(name).jsonArray)

    fun optJSONArray(name: String) = content[name]?.let { JSONArray(it.jsonArray) }

    fun getString(name: String) = content.getValue(name).jsonPrimitive.content

    fun has(name: String) = name in content

    fun getInt(name: String) = content.getValue(name).jsonPrimitive.int

    fun optString(name: String) = content[name]?.jsonPrimitive?.content ?: ""
}

class JSONArray(private val content: JsonArray) {
    fun length() = content.size

    fun getJSONObject(index: Int) = JSONObject(content[index].jsonObject)

    fun getDouble(index: Int) = content[index].jsonPrimitive.double

    fun getString(index: Int) = content[index].jsonPrimitive.content
}
